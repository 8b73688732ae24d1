// Causal attention over pages, read where they lie.
//
// Keys are taken in blocks of 64 that begin at multiples of 64 of the position, with a running maximum (Milakov and
// Gimelshein 2018). Decode has keys in the lanes, prefill has queries in the lanes; both add in the same order (products
// over d one after another; weights of a block folded like lanes; values position by position), so a token's result is
// the same to the bit whether it came alone, in a chunk of any length, or beside others.
#include <limits>
#include <vector>

#include "op.h"

namespace plait {
namespace {

constexpr int64_t BLOCK = 64;
constexpr int TILE = 2 * LANES;  // queries of a prefill tile
const float LOWEST = -std::numeric_limits<float>::infinity();

struct Args {
    int64_t dtype, sequences, decodes, query_heads, heads, d, dv;
    const void* q;
    int64_t q_token, q_head;
    const void* k;
    int64_t k_token, k_head;
    const void* v;
    int64_t v_token, v_head;
    void *k_view, *v_view;
    int64_t granule;  // values in a granule
    const int32_t* table;
    int64_t table_width;
    const int64_t *write_pages, *write_offsets;
    int64_t page_size;
    const int32_t *starts, *lengths;
    int64_t window;  // 0: none
    const float* sinks;
    void* out;
    double scale, softcap;  // softcap 0: none
};

inline vf bend(vf score, float softcap) { return softcap > 0 ? softcap * tanh(score / softcap) : score; }

// exp(x - top) where top may be minus infinity because nothing was seen yet.
inline vf weight(vf x, vf top) { return exp(x - (top == LOWEST ? vf{} : top)); }

template <class T>
class Attention {
  public:
    explicit Attention(const Args& args) : a(args), group(args.query_heads / args.heads) {}

    void store_entries() const {
        int64_t tokens = a.starts[a.sequences];
        split(tokens, double(a.heads) * (a.d + a.dv) / 8, [&](int64_t begin, int64_t end) {
            for (int64_t t = begin; t < end; t++)
                for (int64_t h = 0; h < a.heads; h++) {
                    int64_t entry = a.write_offsets[t] * a.heads + h, page = a.write_pages[t] * a.granule;
                    const T* k = static_cast<const T*>(a.k) + t * a.k_token + h * a.k_head;
                    const T* v = static_cast<const T*>(a.v) + t * a.v_token + h * a.v_head;
                    std::memcpy(static_cast<T*>(a.k_view) + page + entry * a.d, k, a.d * sizeof(T));
                    std::memcpy(static_cast<T*>(a.v_view) + page + entry * a.dv, v, a.dv * sizeof(T));
                }
        });
    }

    void run() const {
        struct Job {
            int64_t sequence, head, tile;
        };
        std::vector<Job> jobs;  // the longest histories last in a batch would leave one thread alone: prefill goes first
        double cycles = 0;
        for (int64_t s = a.decodes; s < a.sequences; s++) {
            int64_t rows = int64_t(a.starts[s + 1] - a.starts[s]) * group;
            for (int64_t tile = (rows + TILE - 1) / TILE; tile-- > 0;)
                for (int64_t h = 0; h < a.heads; h++) jobs.push_back({s, h, tile});
            cycles += double(rows) * a.heads * a.lengths[s] * (a.d + a.dv) / LANES;
        }
        for (int64_t s = 0; s < a.decodes; s++) {
            for (int64_t h = 0; h < a.heads; h++) jobs.push_back({s, h, -1});
            cycles += double(a.heads) * a.lengths[s] * (a.d + a.dv) / 4;
        }
        auto work = [&](int64_t i) {
            if (jobs[i].tile < 0)
                decode(jobs[i].sequence, jobs[i].head);
            else
                prefill(jobs[i].sequence, jobs[i].head, jobs[i].tile * TILE);
        };
        if (cycles < 20000)
            for (size_t i = 0; i < jobs.size(); i++) work(int64_t(i));
        else
            share(int64_t(jobs.size()), work);
    }

  private:
    // Entry of one head at a position.
    const T* entry(const void* view, int64_t width, int64_t sequence, int64_t head, int64_t position) const {
        int64_t page = a.table[sequence * a.table_width + position / a.page_size];
        return static_cast<const T*>(view) + page * a.granule + (position % a.page_size * a.heads + head) * width;
    }

    int64_t first_seen(int64_t position) const { return a.window ? std::max<int64_t>(0, position - a.window + 1) : 0; }

    static void widen(const T* from, float* to, int64_t n) {
        each_vector(n, [&](int64_t i, int lanes) { store_some(to + i, load_some(from + i, lanes), lanes); });
    }

    // One query of every head in the group. Lanes are keys for the scores, channels for the values.
    void decode(int64_t sequence, int64_t head) const {
        struct Scratch;
        int64_t token = a.starts[sequence], length = a.lengths[sequence];
        int64_t padded_d = round_up(a.d, LANES), padded = round_up(a.dv, LANES);
        float* q = scratch<Scratch>(group * (a.d + BLOCK + padded) + BLOCK * (padded_d + padded));
        float *weights = q + group * a.d, *sums = weights + group * BLOCK;
        float *keys = sums + group * padded, *values = keys + padded_d * BLOCK;
        std::vector<float> top(group), total(group);
        for (int64_t g = 0; g < group; g++) {
            int64_t h = head * group + g;
            const T* row = static_cast<const T*>(a.q) + token * a.q_token + h * a.q_head;
            for (int64_t i = 0; i < a.d; i++) q[g * a.d + i] = to_float(row[i]) * float(a.scale);
            top[g] = a.sinks ? a.sinks[h] : LOWEST;
            total[g] = a.sinks ? 1.0f : 0.0f;
            for (int64_t i = 0; i < padded; i++) sums[g * padded + i] = 0.0f;
        }
        int64_t seen = first_seen(length - 1);
        for (int64_t block = seen / BLOCK * BLOCK; block < length; block += BLOCK) {
            int64_t from = std::max(seen - block, int64_t(0)), to = std::min(length - block, BLOCK);
            transpose_keys(keys, sequence, head, block, from, to);
            for (int64_t j = from; j < to; j++)
                each_vector(a.dv, [&](int64_t i, int lanes) {
                    store(values + j * padded + i, load_some(entry(a.v_view, a.dv, sequence, head, block + j) + i, lanes));
                });
            for (int64_t g = 0; g < group; g++) {
                float* line = weights + g * BLOCK;
                float fade = weigh_line(q + g * a.d, keys, line, from, to, top[g], total[g]);
                int64_t i = 0;
                for (; i + 4 * LANES <= padded; i += 4 * LANES) add_values<4>(sums + g * padded + i, fade, line, values + i, padded, from, to);
                for (; i < padded; i += LANES) add_values<1>(sums + g * padded + i, fade, line, values + i, padded, from, to);
            }
        }
        for (int64_t g = 0; g < group; g++) {
            T* out = static_cast<T*>(a.out) + (token * a.query_heads + head * group + g) * a.dv;
            each_vector(a.dv, [&](int64_t i, int lanes) {
                store_some(out + i, load(sums + g * padded + i) / total[g], lanes);
            });
        }
    }

    // Keys [from, to) of a block as [d, BLOCK]; the others are zero.
    void transpose_keys(float* keys, int64_t sequence, int64_t head, int64_t block, int64_t from, int64_t to) const {
        for (int64_t j = 0; j < BLOCK; j += LANES) {
            const T* rows[LANES];
            for (int n = 0; n < LANES; n++) {
                bool live = j + n >= from && j + n < to;
                rows[n] = live ? entry(a.k_view, a.d, sequence, head, block + j + n) : nullptr;
            }
            each_vector(a.d, [&](int64_t i, int lanes) {
                vf square[LANES];
                for (int n = 0; n < LANES; n++) square[n] = rows[n] ? load_some(rows[n] + i, lanes) : vf{};
                transpose(square);
                for (int n = 0; n < lanes; n++) store(keys + (i + n) * BLOCK + j, square[n]);
            });
        }
    }

    // One head's weights of a block's keys, and its running maximum and total; returns how much earlier sums fade.
    float weigh_line(const float* q, const float* keys, float* line, int64_t from, int64_t to, float& top, float& total) const {
        constexpr int VECTORS = BLOCK / LANES;
        vf scores[VECTORS] = {};
        for (int64_t i = 0; i < a.d; i++)
            for (int v = 0; v < VECTORS; v++) scores[v] = fma(load(keys + i * BLOCK + v * LANES), splat(q[i]), scores[v]);
        for (int v = 0; v < VECTORS; v++) scores[v] = bend(scores[v], float(a.softcap));
        if (from > 0 || to < BLOCK) {
            for (int v = 0; v < VECTORS; v++) store(line + v * LANES, scores[v]);
            for (int64_t j = 0; j < BLOCK; j++) line[j] = j >= from && j < to ? line[j] : LOWEST;
            for (int v = 0; v < VECTORS; v++) scores[v] = load(line + v * LANES);
        }
        vf best = splat(top), all = {};
        for (int v = 0; v < VECTORS; v++) best = max(scores[v], best);
        best = splat(largest(best));
        for (int v = 0; v < VECTORS; v++) {
            vf w = weight(scores[v], best);
            store(line + v * LANES, w);
            all += w;
        }
        float fade = weight(splat(top), best)[0];
        total = total * fade + sum(all);
        top = best[0];
        return fade;
    }

    // sums = sums * fade + weights . values, for N vectors of channels, key after key.
    template <int N>
    static void add_values(float* sums, float fade, const float* weights, const float* values, int64_t stride, int64_t from,
                           int64_t to) {
        vf acc[N];
        for (int n = 0; n < N; n++) acc[n] = load(sums + n * LANES) * fade;
        for (int64_t j = from; j < to; j++)
            for (int n = 0; n < N; n++) acc[n] = fma(load(values + j * stride + n * LANES), splat(weights[j]), acc[n]);
        for (int n = 0; n < N; n++) store(sums + n * LANES, acc[n]);
    }

    // TILE rows of (token, head of the group) from `first` on, in the lanes.
    void prefill(int64_t sequence, int64_t head, int64_t first) const {
        struct Scratch;
        int64_t begin = a.starts[sequence], tokens = a.starts[sequence + 1] - begin;
        int64_t history = a.lengths[sequence] - tokens, rows = std::min<int64_t>(TILE, tokens * group - first);
        float* q = scratch<Scratch>((a.d + BLOCK + a.dv) * TILE + (a.d + a.dv) * BLOCK);
        float *weights = q + a.d * TILE, *sums = weights + BLOCK * TILE, *keys = sums + a.dv * TILE, *values = keys + a.d * BLOCK;
        float top[TILE], total[TILE];
        int32_t low[TILE], high[TILE];  // positions that a row sees: [low, high)
        std::memset(q, 0, a.d * TILE * sizeof(float));
        std::memset(sums, 0, a.dv * TILE * sizeof(float));
        for (int64_t r = 0; r < TILE; r++) {
            int64_t row = first + std::min(r, rows - 1), token = row / group, h = head * group + row % group;
            const T* from = static_cast<const T*>(a.q) + (begin + token) * a.q_token + h * a.q_head;
            for (int64_t i = 0; i < a.d; i++) q[i * TILE + r] = to_float(from[i]) * float(a.scale);
            low[r] = int32_t(first_seen(history + token)), high[r] = int32_t(history + token + 1);
            top[r] = a.sinks ? a.sinks[h] : LOWEST;
            total[r] = a.sinks ? 1.0f : 0.0f;
        }
        for (int64_t block = low[0] / BLOCK * BLOCK; block < high[TILE - 1]; block += BLOCK) {
            int64_t from = std::max(low[0] - block, int64_t(0)), to = std::min(high[TILE - 1] - block, BLOCK);
            for (int64_t j = from; j < to; j++) {
                widen(entry(a.k_view, a.d, sequence, head, block + j), keys + j * a.d, a.d);
                widen(entry(a.v_view, a.dv, sequence, head, block + j), values + j * a.dv, a.dv);
            }
            score(q, keys, weights, from, to);
            weigh(weights, sums, top, total, low, high, block, from, to);
            gather(values, weights, sums, from, to);
        }
        for (int64_t r = 0; r < rows; r++) {
            int64_t row = first + r, h = head * group + row % group;
            T* out = static_cast<T*>(a.out) + ((begin + row / group) * a.query_heads + h) * a.dv;
            for (int64_t i = 0; i < a.dv; i++) put(out + i, sums[i * TILE + r] / total[r]);
        }
    }

    // scores[j] = key j . q for all rows.
    void score(const float* q, const float* keys, float* scores, int64_t from, int64_t to) const {
        constexpr int KEYS = REGISTERS / 4;
        int64_t j = from;
        for (; j + KEYS <= to; j += KEYS) score_keys<KEYS>(q, keys + j * a.d, scores + j * TILE);
        for (; j < to; j++) score_keys<1>(q, keys + j * a.d, scores + j * TILE);
    }

    template <int KEYS>
    void score_keys(const float* q, const float* keys, float* scores) const {
        vf left[KEYS] = {}, right[KEYS] = {};
        for (int64_t i = 0; i < a.d; i++) {
            vf q_left = load(q + i * TILE), q_right = load(q + i * TILE + LANES);
            for (int n = 0; n < KEYS; n++) {
                vf key = splat(keys[n * a.d + i]);
                left[n] = fma(q_left, key, left[n]);
                right[n] = fma(q_right, key, right[n]);
            }
        }
        for (int n = 0; n < KEYS; n++) store(scores + n * TILE, left[n]), store(scores + n * TILE + LANES, right[n]);
    }

    // Scores to weights in place, running maximum and total, and the fading of what was summed before.
    void weigh(float* scores, float* sums, float* top, float* total, const int32_t* low, const int32_t* high, int64_t block,
               int64_t from, int64_t to) const {
        for (int half = 0; half < TILE; half += LANES) {
            vi first, last;
            std::memcpy(&first, low + half, sizeof first);
            std::memcpy(&last, high + half, sizeof last);
            vf before = load(top + half), best = before;
            for (int64_t j = from; j < to; j++) {
                vi position = splat_int(int32_t(block + j));
                vf s = bend(load(scores + j * TILE + half), float(a.softcap));
                s = (position >= first) & (position < last) ? s : splat(LOWEST);
                store(scores + j * TILE + half, s);
                best = max(s, best);
            }
            vf lines[LANES] = {};  // folded like the lanes of decode
            for (int64_t j = from; j < to; j++) {
                vf w = weight(load(scores + j * TILE + half), best);
                store(scores + j * TILE + half, w);
                lines[j % LANES] += w;
            }
            for (int n = LANES / 2; n; n /= 2)
                for (int i = 0; i < n; i++) lines[i] += lines[i + n];
            vf fade = weight(before, best);
            store(total + half, load(total + half) * fade + lines[0]);
            store(top + half, best);
            for (int64_t i = 0; i < a.dv; i++) store(sums + i * TILE + half, load(sums + i * TILE + half) * fade);
        }
    }

    // sums[i] += weights[j] * values[j][i] over the keys, one after another.
    void gather(const float* values, const float* weights, float* sums, int64_t from, int64_t to) const {
        constexpr int CHANNELS = REGISTERS / 4;
        int64_t i = 0;
        for (; i + CHANNELS <= a.dv; i += CHANNELS) gather_channels<CHANNELS>(values + i, weights, sums + i * TILE, from, to);
        for (; i < a.dv; i++) gather_channels<1>(values + i, weights, sums + i * TILE, from, to);
    }

    template <int CHANNELS>
    void gather_channels(const float* values, const float* weights, float* sums, int64_t from, int64_t to) const {
        vf left[CHANNELS], right[CHANNELS];
        for (int n = 0; n < CHANNELS; n++) left[n] = load(sums + n * TILE), right[n] = load(sums + n * TILE + LANES);
        for (int64_t j = from; j < to; j++) {
            vf w_left = load(weights + j * TILE), w_right = load(weights + j * TILE + LANES);
            for (int n = 0; n < CHANNELS; n++) {
                vf value = splat(values[j * a.dv + n]);
                left[n] = fma(w_left, value, left[n]);
                right[n] = fma(w_right, value, right[n]);
            }
        }
        for (int n = 0; n < CHANNELS; n++) store(sums + n * TILE, left[n]), store(sums + n * TILE + LANES, right[n]);
    }

    const Args& a;
    int64_t group;
};

}  // namespace

PLAIT_OP(paged_attention, Args) {
    with_dtype(args->dtype, [&](auto* type) {
        Attention<std::remove_pointer_t<decltype(type)>> op(*args);
        op.store_entries();
        op.run();
    });
}

}  // namespace plait
