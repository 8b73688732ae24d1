// What the ops share: how arguments arrive, dtype codes, and scratch memory.
//
// Every op is `void plait_<op>(const Args*)` where Args has only 8-byte fields (integers, pointers, doubles), so that
// Python packs it with one `struct` format and a list of calls can be kept and replayed.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <memory>

#include "pool.h"
#include "simd.h"

#define PLAIT_OP(name, Args) extern "C" void plait_##name(const Args* args)

namespace plait {

enum Dtype : int64_t { FP32 = 0, BF16 = 1 };

// Calls f with a null pointer of the dtype's type, to pick a template instance.
template <class F>
inline void with_dtype(int64_t dtype, F f) {
    if (dtype == BF16)
        f((bf16*)nullptr);
    else
        f((float*)nullptr);
}

// Memory that a thread keeps for its next call; contents are undefined. Each `Tag` is its own piece.
template <class Tag>
inline float* scratch(int64_t count) {
    struct Free {
        void operator()(float* p) const { std::free(p); }
    };
    static thread_local std::unique_ptr<float, Free> memory;
    static thread_local int64_t capacity = 0;
    if (count > capacity) {
        capacity = (count + 1023) / 1024 * 1024;
        memory.reset(static_cast<float*>(std::aligned_alloc(64, capacity * sizeof(float))));
    }
    return memory.get();
}

inline int64_t round_up(int64_t n, int64_t to) { return (n + to - 1) / to * to; }

}  // namespace plait
