// The product of many rows: outputs in the lanes, rows of x broadcast, both packed so that they are read straight on.
//
// Additions are made in the order of linear_few.h, which keeps k in the lanes: what lane l adds up there (every LANES-th
// value of k) is added up here one lane after another, and the partial sums are then added as lanes are folded there. So
// a row's result is the same to the bit, whichever of the two computed it.
#pragma once

#include "linear_operands.h"

namespace plait {

template <class Out, class T>
class ManyRows {
  public:
    static constexpr int VECTORS = 2;
    static constexpr int WIDTH = VECTORS * LANES;                                 // outputs of a tile
    static constexpr int HEIGHT = REGISTERS == 32 ? (LANES == 16 ? 14 : 12) : 6;  // rows of a tile
    static constexpr int64_t BLOCK = 24 * HEIGHT;                                 // rows that stay in the cache while weights pass

    explicit ManyRows(const Operands<Out, T>& operands) : o(operands), depth(round_up(o.ins, Layout<T>::STEP) / LANES) {}

    void run() const {
        for (int64_t block = 0, blocks = (o.rows + BLOCK - 1) / BLOCK; block < blocks; block++)
            run_block(o.rows * block / blocks, o.rows * (block + 1) / blocks);
    }

  private:
    static constexpr int STRIDE = (HEIGHT + LANES - 1) / LANES * LANES;  // packed rows of x at one value of k
    static constexpr int AHEAD = 8;                                      // values of k fetched before they are needed
    static constexpr int LEVELS = LANES == 16 ? 4 : LANES == 8 ? 3 : 2;  // of the fold

    // Rows [begin, end): tiles of x are packed once for all outputs, panels of the weight where they are used.
    void run_block(int64_t begin, int64_t end) const {
        struct Rows;
        int64_t rows = end - begin, tiles = (rows + HEIGHT - 1) / HEIGHT, panels = (o.outs + WIDTH - 1) / WIDTH;
        auto edge = [&](int64_t tile) { return rows * tile / tiles; };
        float* packed = scratch<Rows>(tiles * tile_size());
        split(tiles, double(depth * LANES) * HEIGHT / 4, [&](int64_t a, int64_t b) {
            for (int64_t i = a; i < b; i++) {
                const T* from = o.x + (begin + edge(i)) * o.x_stride;
                for (int64_t r = 0; r < STRIDE; r += LANES)
                    pack(from + r * o.x_stride, o.x_stride, edge(i + 1) - edge(i) - r, packed + i * tile_size() + r, STRIDE);
            }
        });
        // Where there are few panels, rows are shared out too.
        int64_t parts = std::min(tiles, (2 * threads() + panels - 1) / panels);
        double cycles = double(rows + 8) / parts * depth * LANES * VECTORS / 2;
        split(panels * parts, cycles, [&](int64_t a, int64_t b) {
            struct Panel;
            float* panel = scratch<Panel>(depth * LANES * WIDTH);
            for (int64_t i = a, last = -1; i < b; i++) {
                int64_t col = i / parts * WIDTH, part = i % parts;
                if (i / parts != last)
                    for (int v = 0; v < VECTORS; v++)
                        pack(o.weight + (col + v * LANES) * o.ins, o.ins, o.outs - col - v * LANES, panel + v * LANES, WIDTH);
                last = i / parts;
                for (int64_t t = tiles * part / parts; t < tiles * (part + 1) / parts; t++)
                    any_tile(edge(t + 1) - edge(t), packed + t * tile_size(), panel, begin + edge(t), col);
            }
        });
    }

    int64_t tile_size() const { return depth * LANES * STRIDE; }

    // LANES rows (or what there is of them, zeros behind) as columns: value l + LANES * i of k at to[(l * depth + i) * stride].
    void pack(const T* from, int64_t from_stride, int64_t rows, float* to, int64_t stride) const {
        constexpr int STEP = Layout<T>::STEP;
        for (int64_t k = 0; k < depth * LANES; k += STEP) {
            alignas(64) float wide[LANES][STEP];
            for (int r = 0; r < LANES; r++) {
                const T* row = from + r * from_stride + k;
                if (r >= rows)
                    std::memset(wide[r], 0, sizeof wide[r]);
                else if (k + STEP <= o.ins)
                    Layout<T>::widen(row, wide[r]);
                else
                    widen_part(row, wide[r], o.ins - k);
            }
            for (int part = 0; part < STEP / LANES; part++) {
                vf square[LANES];
                for (int r = 0; r < LANES; r++) square[r] = load(wide[r] + part * LANES);
                transpose(square);
                for (int l = 0; l < LANES; l++) store(to + (l * depth + k / LANES + part) * stride, square[l]);
            }
        }
    }

    template <int M = HEIGHT>
    void any_tile(int64_t m, const float* x, const float* w, int64_t row, int64_t col) const {
        if (m == M) return tile<M>(x, w, row, col);
        if constexpr (M > 1) any_tile<M - 1>(m, x, w, row, col);
    }

    template <int M>
    void tile(const float* x, const float* w, int64_t row, int64_t col) const {
        alignas(64) float waiting[LEVELS + 1][M * WIDTH];
        int level = 0;
        for (int step = 0; step < LANES; step++) {
            int lane = 0;  // 0, 8, 4, 12, ...: each comes when what it is added to is there
            for (int bit = 0; bit < LEVELS; bit++) lane |= (step >> bit & 1) << (LEVELS - 1 - bit);
            vf acc[M][VECTORS] = {};
            const float *xs = x + lane * depth * STRIDE, *ws = w + lane * depth * WIDTH;
            for (int64_t i = 0; i < depth; i++, xs += STRIDE, ws += WIDTH) {
                vf columns[VECTORS];
                for (int v = 0; v < VECTORS; v++) columns[v] = load(ws + v * LANES);
                __builtin_prefetch(xs + AHEAD * STRIDE);
                for (int m = 0; m < M; m++) {
                    vf value = splat(xs[m]);
                    for (int v = 0; v < VECTORS; v++) acc[m][v] = fma(value, columns[v], acc[m][v]);
                }
            }
            for (level = 0; step >> level & 1; level++)
                for (int m = 0; m < M; m++)
                    for (int v = 0; v < VECTORS; v++) acc[m][v] = load(waiting[level] + m * WIDTH + v * LANES) + acc[m][v];
            for (int m = 0; m < M; m++)
                for (int v = 0; v < VECTORS; v++) store(waiting[level] + m * WIDTH + v * LANES, acc[m][v]);
        }
        for (int v = 0; v < VECTORS; v++) {
            int64_t at = col + v * LANES;
            int lanes = int(std::min<int64_t>(LANES, o.outs - at));
            if (lanes <= 0) break;
            vf add = o.bias ? load_some(o.bias + at, lanes) : vf{};
            for (int m = 0; m < M; m++)
                store_some(o.out + (row + m) * o.outs + at, load(waiting[level] + m * WIDTH + v * LANES) + add, lanes);
        }
    }

    const Operands<Out, T>& o;
    const int64_t depth;  // values of k that a lane adds up
};

}  // namespace plait
