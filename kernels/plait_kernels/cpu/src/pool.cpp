#include "pool.h"

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <thread>

#include "simd.h"

namespace plait {
namespace {

constexpr auto LOOK_FOR = std::chrono::microseconds(60);

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
        if (!caller.owns_lock() || size() <= 1 || n <= 1) {
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
        take_tasks();
        open_.store(false);
        while (inside_.load() > 0) pause();
    }

  private:
    void take_tasks() {
        for (int64_t i; (i = next_.fetch_add(1, std::memory_order_relaxed)) < count_;) task_(context_, i);
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
        auto until = std::chrono::steady_clock::now() + LOOK_FOR;
        do {
            for (int i = 0; i < 16; i++) {
                uint64_t now = generation_.load();
                if (now != seen) return now;
                pause();
            }
        } while (std::chrono::steady_clock::now() < until);
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

extern "C" int plait_lanes() { return LANES; }
extern "C" void plait_set_threads(int64_t threads) { pool().resize(int(threads)); }

}  // namespace plait
