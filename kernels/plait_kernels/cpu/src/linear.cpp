// out = x weight^T + bias, weight [n, k] as checkpoints store it.
//
// Every output is one accumulator vector over k, folded at the end: the same order of additions for every number of rows.
// bf16 weights are widened in registers and multiplied in fp32: one shift gives the even values of a vector, one mask
// the odd ones, so x is laid out in that order ("split": 2 * LANES values as LANES even ones, then LANES odd ones).
#include "op.h"

namespace plait {
namespace {

constexpr int ROWS = REGISTERS == 32 ? 4 : 2;  // rows of x in a tile
constexpr int COLS = REGISTERS == 32 ? 6 : 4;  // rows of weight in a tile
constexpr int FEW_COLS = 8;                    // the same, where x has but one row
constexpr int GROUP = 48;                      // rows of weight whose sums are rounded together
constexpr int64_t DEPTH = 1024;                // values of k at a time, so that a tile stays in the nearest cache
constexpr int64_t CHUNK = 64;                  // rows of x that stay in the cache while weights pass

struct Args {
    int64_t dtype, out_dtype, rows, outs, ins;
    const void* x;
    int64_t x_stride;
    const void *weight, *bias;
    void* out;
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

// One row of k values as fp32 in the order of Layout<T>, zeros behind.
template <class T>
void widen_row(const T* from, float* to, int64_t k) {
    constexpr int STEP = Layout<T>::STEP;
    int64_t i = 0;
    for (; i + STEP <= k; i += STEP) Layout<T>::widen(from + i, to + i);
    if (i < k) {
        T tail[STEP] = {};
        for (int64_t j = i; j < k; j++) tail[j - i] = from[j];
        Layout<T>::widen(tail, to + i);
    }
}

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
struct Problem {
    const float* x;  // widened rows
    int64_t x_stride, rows, outs, ins;
    const T *weight, *bias;
    Out* out;

    // Sums of rows [0, m) of xs with N rows of w over a span of k, to sums[row * GROUP + column].
    template <bool WHOLE, int N, class W>
    void panel(const float* xs, int64_t m, const W* w, int64_t w_stride, const Span& span, float* waiting, float* sums) const {
        constexpr int64_t TILE = N * LANES;  // waiting values of one row
        int64_t r = 0;
        for (; r + ROWS <= m; r += ROWS)
            tile<WHOLE, ROWS, N>(xs + r * x_stride, x_stride, w, w_stride, span, waiting + r * TILE, sums + r * GROUP);
        for (; r < m; r++) tile<WHOLE, 1, N>(xs + r * x_stride, x_stride, w, w_stride, span, waiting + r * TILE, sums + r * GROUP);
    }

    // The same over all of k, from rows of weight in place, or widened where that pays or the tail of a row is padded.
    template <int N>
    void column(const float* xs, int64_t m, const T* w, float* sums) const {
        struct Waiting;
        bool in_place = ins == x_stride && (sizeof(T) == 4 || m <= 4 * ROWS);
        if (m < ROWS || x_stride <= DEPTH) {
            if (m >= ROWS) fetch(w + N * ins, N * ins);  // the next panel comes while this one is computed
            return stretch<true, N>(xs, m, w, in_place, Span{0, x_stride, true, true}, nullptr, sums);
        }
        float* waiting = scratch<Waiting>(CHUNK * N * LANES);
        for (int64_t k = 0; k < x_stride; k += DEPTH) {
            Span span{k, std::min(DEPTH, x_stride - k), k == 0, k + DEPTH >= x_stride};
            stretch<false, N>(xs, m, w, in_place, span, waiting, sums);
        }
    }

    template <bool WHOLE, int N>
    void stretch(const float* xs, int64_t m, const T* w, bool in_place, const Span& span, float* waiting, float* sums) const {
        const float* x = xs + span.begin;
        if (in_place) return panel<WHOLE, N>(x, m, w + span.begin, ins, span, waiting, sums);
        struct Wide;
        float* wide = scratch<Wide>(N * span.length);
        for (int n = 0; n < N; n++)
            widen_row(w + n * ins + span.begin, wide + n * span.length, std::min(span.length, ins - span.begin));
        panel<WHOLE, N>(x, m, wide, span.length, span, waiting, sums);
    }

    static void fetch(const T* from, int64_t n) {
        for (int64_t i = 0; i < n; i += 64 / int64_t(sizeof(T))) __builtin_prefetch(from + i);
    }

    // At most CHUNK rows from `row` on, columns [col, end): GROUP columns at a time are summed, then rounded as vectors.
    void block(int64_t row, int64_t col, int64_t end) const {
        int64_t m = std::min(rows - row, CHUNK);
        const float* xs = x + row * x_stride;
        alignas(64) float sums[CHUNK * GROUP];
        for (; col < end; col += GROUP) {
            int64_t width = std::min<int64_t>(GROUP, end - col), n = 0;
            if (m < ROWS)
                for (; n + FEW_COLS <= width; n += FEW_COLS) column<FEW_COLS>(xs, m, weight + (col + n) * ins, sums + n);
            for (; n + COLS <= width; n += COLS) column<COLS>(xs, m, weight + (col + n) * ins, sums + n);
            for (; n < width; n++) column<1>(xs, m, weight + (col + n) * ins, sums + n);
            each_vector(width, [&](int64_t i, int lanes) {
                vf add = bias ? load_some(bias + col + i, lanes) : vf{};
                for (int64_t r = 0; r < m; r++)
                    store_some(out + (row + r) * outs + col + i, load(sums + r * GROUP + i) + add, lanes);
            });
        }
    }

    void run() const {
        int64_t chunks = (rows + CHUNK - 1) / CHUNK, groups = (outs + GROUP - 1) / GROUP;
        if (chunks >= 4 * threads()) return share(chunks, [&](int64_t c) { block(c * CHUNK, 0, outs); });
        for (int64_t c = 0; c < chunks; c++) {
            int64_t m = std::min(rows - c * CHUNK, CHUNK);
            double cycles = double(m + 3) * GROUP * ins / (2 * LANES);
            split(groups, cycles, [&](int64_t a, int64_t b) { block(c * CHUNK, a * GROUP, std::min(outs, b * GROUP)); });
        }
    }
};

template <class T, class Out>
void linear(const Args& a) {
    const T* x = static_cast<const T*>(a.x);
    int64_t padded = round_up(a.ins, Layout<T>::STEP);
    struct Rows;
    float* wide = scratch<Rows>(a.rows * padded);
    split(a.rows, double(padded) / 8, [&](int64_t begin, int64_t end) {
        for (int64_t r = begin; r < end; r++) widen_row(x + r * a.x_stride, wide + r * padded, a.ins);
    });
    Problem<Out, T>{wide,   padded, a.rows, a.outs, a.ins, static_cast<const T*>(a.weight), static_cast<const T*>(a.bias),
                    static_cast<Out*>(a.out)}
        .run();
}

}  // namespace

PLAIT_OP(linear, Args) {
    const Args& a = *args;
    if (a.dtype == FP32)
        linear<float, float>(a);
    else if (a.out_dtype == FP32)
        linear<bf16, float>(a);
    else
        linear<bf16, bf16>(a);
}

}  // namespace plait
