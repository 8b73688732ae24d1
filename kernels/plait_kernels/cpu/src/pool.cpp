#include "pool.h"

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <thread>

#include "simd.h"

namespace plait {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::microseconds;

constexpr auto LOOK_FOR = microseconds(60);
constexpr auto STALL = microseconds(100);  // beyond a few tasks' time, no task takes so long to end on a core of its own
constexpr auto SHORTEST_REST = microseconds(10000), LONGEST_REST = microseconds(80000);  // a stall costs a time slice of a few ms

inline void pause() {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    asm volatile("yield");
#endif
}

// One job at a time. `inside` counts helpers that may be reading the job; the caller changes it only while the job is
// closed and nobody is inside.
class Pool {
  public:
    void resize(int threads) {
        std::lock_guard<std::mutex> caller(calling_);
        for (; started_ < threads - 1; started_++) std::thread([this, rank = started_] { help(rank); }).detach();
        wanted_.store(threads, std::memory_order_relaxed);
    }

    int size() const { return wanted_.load(std::memory_order_relaxed); }

    void run(int64_t n, Task task, const void* context) {
        std::unique_lock<std::mutex> caller(calling_, std::try_to_lock);
        if (!caller.owns_lock() || size() <= 1 || n <= 1 || resting()) {
            for (int64_t i = 0; i < n; i++) task(context, i);
            return;
        }
        task_ = task, context_ = context, count_ = n;
        next_.store(0, std::memory_order_relaxed);
        open_.store(true);
        generation_.fetch_add(1);
        if (sleeping_.load() > 0) {
            std::lock_guard<std::mutex> lock(sleep_);
            wake_.notify_all();
        }
        auto begin = Clock::now();
        int64_t done = take_tasks();
        open_.store(false);
        if (inside_.load() > 0) wait_for_helpers(done > 0 ? (Clock::now() - begin) / done : Clock::duration{});
    }

  private:
    // A helper that lost its core while it held a task: the machine has other things to do, so the caller works alone
    // for a while, longer each time it happens again.
    // `each` is what a task took here.
    void wait_for_helpers(Clock::duration each) {
        auto begin = Clock::now();
        auto patience = STALL + 3 * each;
        for (int i = 1; inside_.load() > 0; i++) {
            pause();
            if (i % 64 == 0 && Clock::now() - begin > patience / 2) std::this_thread::sleep_for(microseconds(20));  // lend it this core
        }
        auto end = Clock::now();
        if (end - begin < patience) return;
        rest_ = end - rest_until_ < 4 * rest_ ? (rest_ * 2 < LONGEST_REST ? rest_ * 2 : LONGEST_REST) : SHORTEST_REST;
        rest_until_ = end + rest_;
    }

    bool resting() const { return rest_until_ > Clock::time_point{} && Clock::now() < rest_until_; }

    int64_t take_tasks() {
        int64_t done = 0;
        for (int64_t i; (i = next_.fetch_add(1, std::memory_order_relaxed)) < count_; done++) task_(context_, i);
        return done;
    }

    void help(int rank) {
        uint64_t seen = 0;
        for (;;) {
            seen = await_change(seen);
            if (rank >= size() - 1) continue;
            inside_.fetch_add(1);
            if (open_.load()) take_tasks();
            inside_.fetch_sub(1);
        }
    }

    uint64_t await_change(uint64_t seen) {
        auto until = Clock::now() + LOOK_FOR;
        do {
            for (int i = 0; i < 16; i++) {
                uint64_t now = generation_.load();
                if (now != seen) return now;
                pause();
            }
        } while (Clock::now() < until);
        std::unique_lock<std::mutex> lock(sleep_);
        sleeping_.fetch_add(1);
        wake_.wait(lock, [&] { return generation_.load() != seen; });
        sleeping_.fetch_sub(1);
        return generation_.load();
    }

    std::mutex calling_, sleep_;
    std::condition_variable wake_;
    std::atomic<uint64_t> generation_{0};
    std::atomic<int64_t> next_{0};
    std::atomic<int> inside_{0}, sleeping_{0}, wanted_{1};
    std::atomic<bool> open_{false};
    microseconds rest_ = SHORTEST_REST;
    Clock::time_point rest_until_{};
    int started_ = 0;
    Task task_ = nullptr;
    const void* context_ = nullptr;
    int64_t count_ = 0;
};

// Never destroyed: helpers may outlive main, and hold no work then.
Pool& pool() {
    static Pool* const only = new Pool;
    return *only;
}

}  // namespace

int threads() { return pool().size(); }

void run_tasks(int64_t n, Task task, const void* context) { pool().run(n, task, context); }

// The ops at `functions`, each with its arguments, one after another.
extern "C" void plait_replay(int64_t count, void (*const* functions)(const void*), const void* const* arguments) {
    for (int64_t i = 0; i < count; i++) functions[i](arguments[i]);
}

extern "C" int plait_lanes() { return LANES; }
extern "C" void plait_set_threads(int64_t threads) { pool().resize(int(threads)); }

}  // namespace plait
