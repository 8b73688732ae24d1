// The product of few rows: k in the lanes, rows of weight read where they lie.
//
// Every output is one accumulator vector over k, folded at the end. bf16 weights are widened in registers.
#pragma once

#include "linear_operands.h"

namespace plait {

constexpr int ROWS = REGISTERS == 32 ? 4 : 2;  // rows of x in a tile
constexpr int COLS = REGISTERS == 32 ? 6 : 4;  // rows of weight in a tile
constexpr int FEW_COLS = 8;                    // the same, where x has but one row
constexpr int GROUP = 48;                      // rows of weight whose sums are rounded together
constexpr int64_t DEPTH = 1024;                // values of k at a time, so that a tile stays in the nearest cache

// Where a tile stands in k: accumulators wait in memory between blocks of k, so the order of additions stays one.
// WHOLE: there is but one block.
struct Span {
    int64_t begin, length;
    bool first, last;
};

template <bool WHOLE, int M, int N>
inline void begin_tile(const Span& span, vf* acc, const float* waiting) {
    for (int i = 0; i < M * N; i++) acc[i] = vf{};
    if (!WHOLE && !span.first)
        for (int i = 0; i < M * N; i++) acc[i] = load(waiting + i * LANES);
}

// sums[m * GROUP + n] = x row m . w row n when k is through.
template <bool WHOLE, int M, int N>
inline void end_tile(const Span& span, const vf* acc, float* waiting, float* sums) {
    if (!WHOLE && !span.last) {
        for (int i = 0; i < M * N; i++) store(waiting + i * LANES, acc[i]);
        return;
    }
    float flat[M * N];
    sum_all<M * N>(flat, acc);
    for (int m = 0; m < M; m++) std::memcpy(sums + m * GROUP, flat + m * N, N * sizeof(float));
}

// Rows of x are fp32, in the order of the weight's Layout.
template <bool WHOLE, int M, int N>
void tile(const float* x, int64_t x_stride, const float* w, int64_t w_stride, const Span& span, float* waiting, float* sums) {
    vf acc[M * N];
    begin_tile<WHOLE, M, N>(span, acc, waiting);
    for (int64_t i = 0; i < span.length; i += LANES) {
        vf xs[M];
        for (int m = 0; m < M; m++) xs[m] = load(x + m * x_stride + i);
        for (int n = 0; n < N; n++) {
            vf ws = load(w + n * w_stride + i);
            for (int m = 0; m < M; m++) acc[m * N + n] = fma(xs[m], ws, acc[m * N + n]);
        }
    }
    end_tile<WHOLE, M, N>(span, acc, waiting, sums);
}

// The same, straight from bf16 weights.
template <bool WHOLE, int M, int N>
void tile(const float* x, int64_t x_stride, const bf16* w, int64_t w_stride, const Span& span, float* waiting, float* sums) {
    vf acc[M * N];
    begin_tile<WHOLE, M, N>(span, acc, waiting);
    for (int64_t i = 0; i < span.length; i += 2 * LANES)
        for (int odd = 0; odd < 2; odd++) {  // one half after the other: all of x at once would not fit the registers
            vf xs[M];
            for (int m = 0; m < M; m++) xs[m] = load(x + m * x_stride + i + odd * LANES);
            for (int n = 0; n < N; n++) {
                vu pairs;
                std::memcpy(&pairs, w + n * w_stride + i, sizeof pairs);
                vf ws = cast_bits<vf>(odd ? pairs & 0xffff0000u : pairs << 16);
                for (int m = 0; m < M; m++) acc[m * N + n] = fma(xs[m], ws, acc[m * N + n]);
            }
        }
    end_tile<WHOLE, M, N>(span, acc, waiting, sums);
}

template <class Out, class T>
class FewRows {
  public:
    static constexpr int64_t MOST = 31;  // rows; from there on packing both sides pays

    explicit FewRows(const Operands<Out, T>& operands) : o(operands), x_stride(round_up(o.ins, Layout<T>::STEP)) {
        struct Wide;
        x = scratch<Wide>(o.rows * x_stride);
        split(o.rows, double(x_stride) / 8, [&](int64_t begin, int64_t end) {
            for (int64_t r = begin; r < end; r++) widen_row(o.x + r * o.x_stride, x + r * x_stride, o.ins);
        });
    }

    void run() const {
        double cycles = double(o.rows + 3) * GROUP * o.ins / (2 * LANES);
        split((o.outs + GROUP - 1) / GROUP, cycles, [&](int64_t a, int64_t b) {
            for (int64_t col = a * GROUP; col < std::min(o.outs, b * GROUP); col += GROUP) group(col);
        });
    }

  private:
    // GROUP columns at a time are summed, then rounded as vectors.
    void group(int64_t col) const {
        alignas(64) float sums[MOST * GROUP];
        int64_t width = std::min<int64_t>(GROUP, o.outs - col), n = 0;
        const T* w = o.weight + col * o.ins;
        if (o.rows < ROWS)
            for (; n + FEW_COLS <= width; n += FEW_COLS) column<FEW_COLS>(w + n * o.ins, sums + n);
        for (; n + COLS <= width; n += COLS) column<COLS>(w + n * o.ins, sums + n);
        for (; n < width; n++) column<1>(w + n * o.ins, sums + n);
        each_vector(width, [&](int64_t i, int lanes) {
            vf add = o.bias ? load_some(o.bias + col + i, lanes) : vf{};
            for (int64_t r = 0; r < o.rows; r++)
                store_some(o.out + r * o.outs + col + i, load(sums + r * GROUP + i) + add, lanes);
        });
    }

    // Sums of all rows with N rows of w, to sums[row * GROUP + column]. Rows of w are read in place, or widened first
    // where that pays or where the tail of a row is padded.
    template <int N>
    void column(const T* w, float* sums) const {
        struct Waiting;
        bool in_place = o.ins == x_stride && (sizeof(T) == 4 || o.rows <= 4 * ROWS);
        if (o.rows < ROWS || x_stride <= DEPTH) {
            if (o.rows >= ROWS) fetch(w + N * o.ins, N * o.ins);  // the next ones come while these are computed
            return stretch<true, N>(w, in_place, Span{0, x_stride, true, true}, nullptr, sums);
        }
        float* waiting = scratch<Waiting>(MOST * N * LANES);
        for (int64_t k = 0; k < x_stride; k += DEPTH) {
            Span span{k, std::min(DEPTH, x_stride - k), k == 0, k + DEPTH >= x_stride};
            stretch<false, N>(w, in_place, span, waiting, sums);
        }
    }

    template <bool WHOLE, int N>
    void stretch(const T* w, bool in_place, const Span& span, float* waiting, float* sums) const {
        if (in_place) return tiles<WHOLE, N>(w + span.begin, o.ins, span, waiting, sums);
        struct Wide;
        float* wide = scratch<Wide>(N * span.length);
        for (int n = 0; n < N; n++)
            widen_row(w + n * o.ins + span.begin, wide + n * span.length, std::min(span.length, o.ins - span.begin));
        tiles<WHOLE, N>(wide, span.length, span, waiting, sums);
    }

    template <bool WHOLE, int N, class W>
    void tiles(const W* w, int64_t w_stride, const Span& span, float* waiting, float* sums) const {
        constexpr int64_t WAITING = N * LANES;  // values of one row
        const float* xs = x + span.begin;
        int64_t r = 0;
        for (; r + ROWS <= o.rows; r += ROWS)
            tile<WHOLE, ROWS, N>(xs + r * x_stride, x_stride, w, w_stride, span, waiting + r * WAITING, sums + r * GROUP);
        for (; r < o.rows; r++)
            tile<WHOLE, 1, N>(xs + r * x_stride, x_stride, w, w_stride, span, waiting + r * WAITING, sums + r * GROUP);
    }

    static void fetch(const T* from, int64_t n) {
        for (int64_t i = 0; i < n; i += 64 / int64_t(sizeof(T))) __builtin_prefetch(from + i);
    }

    const Operands<Out, T>& o;
    const int64_t x_stride;
    float* x;  // widened rows
};

}  // namespace plait
