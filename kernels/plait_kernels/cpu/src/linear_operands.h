// What is multiplied, and how its rows lie when they are: fp32, in the order in which bf16 is cheapest to widen.
//
// One shift gives the even values of a vector of bf16, one mask the odd ones: 2 * LANES values become LANES even ones,
// then LANES odd ones. fp32 stays as it is.
#pragma once

#include "op.h"

namespace plait {

// out [rows, outs] = x [rows, ins] weight [outs, ins]^T + bias [outs]
template <class Out, class T>
struct Operands {
    int64_t rows, outs, ins;
    const T* x;
    int64_t x_stride;
    const T *weight, *bias;  // bias may be null
    Out* out;
};

template <class T>
struct Layout;

template <>
struct Layout<float> {
    static constexpr int STEP = LANES;
    static void widen(const float* from, float* to) { store(to, load(from)); }
};

template <>
struct Layout<bf16> {
    static constexpr int STEP = 2 * LANES;
    static void widen(const bf16* from, float* to) {
        vu pairs;
        std::memcpy(&pairs, from, sizeof pairs);
        store(to, cast_bits<vf>(pairs << 16));
        store(to + LANES, cast_bits<vf>(pairs & 0xffff0000u));
    }
};

// One step of a row that may end after n values: zeros behind.
template <class T>
inline void widen_part(const T* from, float* to, int64_t n) {
    T whole[Layout<T>::STEP] = {};
    for (int64_t i = 0; i < n && i < Layout<T>::STEP; i++) whole[i] = from[i];
    Layout<T>::widen(whole, to);
}

// One row of k values, zeros behind.
template <class T>
void widen_row(const T* from, float* to, int64_t k) {
    constexpr int STEP = Layout<T>::STEP;
    int64_t i = 0;
    for (; i + STEP <= k; i += STEP) Layout<T>::widen(from + i, to + i);
    if (i < k) widen_part(from + i, to + i, k - i);
}

}  // namespace plait
