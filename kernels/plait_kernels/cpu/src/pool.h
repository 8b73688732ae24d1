// Helpers for the calling thread: it works through a list of tasks, and whoever is awake takes some of them.
//
// Unlike a fork-join region, nobody waits for a helper that has not come: on a machine with more to do than cores (a
// server beside the engine) a helper that was sent to sleep by the system costs nothing unless it holds a task. Helpers
// look for work for a moment after a call (the next op of the model follows within microseconds), then sleep.
#pragma once

#include <cstdint>

namespace plait {

using Task = void (*)(const void* context, int64_t index);

// Threads that work on a call, the calling one included.
int threads();

// Calls task(context, i) for every i in [0, n), in any order, on any thread; returns when all are done.
void run_tasks(int64_t n, Task task, const void* context);

template <class F>
inline void share(int64_t n, const F& f) {
    run_tasks(n, [](const void* context, int64_t i) { (*static_cast<const F*>(context))(i); }, &f);
}

// Cuts [0, n) into pieces of about `cycles_each * length` = 15,000 cycles (no more than 8 per thread), and shares f(begin, end).
template <class F>
inline void split(int64_t n, double cycles_each, const F& f) {
    if (n <= 0) return;
    int64_t pieces = int64_t(n * cycles_each / 15000);
    pieces = pieces < n ? pieces : n;
    pieces = pieces < 8 * threads() ? pieces : 8 * threads();
    if (pieces <= 1 || threads() == 1) return f(int64_t(0), n);
    share(pieces, [&](int64_t i) { f(n * i / pieces, n * (i + 1) / pieces); });
}

}  // namespace plait
