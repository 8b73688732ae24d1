// The Mamba-2 recurrence, token by token with the state in registers.
//
// A tile is a few rows p of one head's state [p, n]; it is loaded once, walks through all tokens of its chain, and is
// stored once. Per value of state and token that is a product and two fused multiply-adds: no more than the chunked
// form needs at blocks of 64, and the result is the same to the bit however the tokens were cut into steps and chunks.
#include "scan.h"

namespace plait {
namespace {

struct Args {
    int64_t dtype, param_dtype, heads, head_dim, groups, n;
    const void* x;
    int64_t x_token, x_head;
    const void* dt;
    int64_t dt_token;
    const void *a_log, *d, *dt_bias, *b;
    int64_t b_token, b_group;
    const void* c;
    int64_t c_token, c_group;
    void* out;
    double dt_min, dt_max;
    Step step;
};

template <class T>
class Ssd {
  public:
    explicit Ssd(const Args& args) : a(args), chains(args.step), padded(round_up(args.n, LANES)) {
        struct B;
        struct C;
        struct Dt;
        b = scratch<B>(a.step.tokens * a.groups * padded);
        c = scratch<C>(a.step.tokens * a.groups * padded);
        dt = scratch<Dt>(2 * a.step.tokens * a.heads + a.heads);
        decay = dt + a.step.tokens * a.heads;
        d = decay + a.step.tokens * a.heads;
    }

    void prepare() {
        with_dtype(a.param_dtype, [&](auto* type) {
            using P = std::remove_pointer_t<decltype(type)>;
            const P *a_log = static_cast<const P*>(a.a_log), *bias = static_cast<const P*>(a.dt_bias);
            for (int64_t h = 0; h < a.heads; h++) d[h] = to_float(static_cast<const P*>(a.d)[h]);
            split(a.step.tokens, a.heads * 120.0 + a.groups * padded / 4, [&](int64_t begin, int64_t end) {
                for (int64_t t = begin; t < end; t++) {
                    const T* raw = static_cast<const T*>(a.dt) + t * a.dt_token;
                    for (int64_t h = 0; h < a.heads; h++) {
                        float size = softplus(to_float(raw[h]) + to_float(bias[h]));
                        size = std::min(std::max(size, float(a.dt_min)), float(a.dt_max));
                        dt[t * a.heads + h] = size;
                        decay[t * a.heads + h] = std::exp(-std::exp(to_float(a_log[h])) * size);
                    }
                    for (int64_t g = 0; g < a.groups; g++) {
                        int64_t to = (t * a.groups + g) * padded;
                        widen(static_cast<const T*>(a.b) + t * a.b_token + g * a.b_group, b + to);
                        widen(static_cast<const T*>(a.c) + t * a.c_token + g * a.c_group, c + to);
                    }
                }
            });
        });
    }

    // NV vectors cover n; a tile has as many rows as registers hold.
    template <int NV>
    void run() const {
        constexpr int ROWS = REGISTERS / 2 / NV > 0 ? REGISTERS / 2 / NV : 1;
        int64_t tasks = chains.size() * a.heads;
        double each = double(a.step.tokens) / chains.size() * a.head_dim * NV * 4;
        split(tasks, each, [&](int64_t begin, int64_t end) {
            for (int64_t i = begin; i < end; i++) {
                int64_t chain = i / a.heads, h = i % a.heads, p = 0;
                for (; p + ROWS <= a.head_dim; p += ROWS) tile<ROWS, NV>(chain, h, p);
                for (; p < a.head_dim; p++) tile<1, NV>(chain, h, p);
            }
        });
    }

  private:
    void widen(const T* from, float* to) const {
        each_vector(a.n, [&](int64_t i, int lanes) { store(to + i, load_some(from + i, lanes)); });
    }

    int lanes(int v) const { return int(std::min<int64_t>(LANES, a.n - v * LANES)); }

    template <int R, int NV>
    void write(float* state, const vf (&s)[R][NV]) const {
        for (int r = 0; r < R; r++)
            for (int v = 0; v < NV; v++)
                if (lanes(v) > 0) store_some(state + r * a.n + v * LANES, s[r][v], lanes(v));
    }

    template <int R, int NV>
    void tile(int64_t chain, int64_t h, int64_t p) const {
        int64_t at = (h * a.head_dim + p) * a.n, group = h / (a.heads / a.groups);
        float* slot = chains.template slot<float>(chain) + at;
        vf s[R][NV];
        for (int r = 0; r < R; r++)
            for (int v = 0; v < NV; v++) s[r][v] = lanes(v) > 0 ? load_some(slot + r * a.n + v * LANES, lanes(v)) : vf{};
        for (int64_t i = 0; i < chains.rows(chain); i++) {
            Row row = chains.row(chain, i);
            for (int64_t t = row.begin; t < row.end; t++) token<R, NV>(s, t, h, p, group);
            if (row.emit >= 0) write<R, NV>(chains.template at<float>(row.emit) + at, s);
        }
        write<R, NV>(slot, s);
    }

    template <int R, int NV>
    inline void token(vf (&s)[R][NV], int64_t t, int64_t h, int64_t p, int64_t group) const {
        const T* x = static_cast<const T*>(a.x) + t * a.x_token + h * a.x_head + p;
        const float *bt = b + (t * a.groups + group) * padded, *ct = c + (t * a.groups + group) * padded;
        float size = dt[t * a.heads + h];
        vf keep = splat(decay[t * a.heads + h]), add[R], y[R] = {};
        float value[R], sums[R];
        for (int r = 0; r < R; r++) value[r] = to_float(x[r]), add[r] = splat(value[r] * size);
        for (int v = 0; v < NV; v++) {
            if (v * LANES >= padded) break;
            vf bv = load(bt + v * LANES), cv = load(ct + v * LANES);
            for (int r = 0; r < R; r++) {
                s[r][v] = fma(add[r], bv, s[r][v] * keep);
                y[r] = fma(s[r][v], cv, y[r]);
            }
        }
        sum_all<R>(sums, y);
        T* out = static_cast<T*>(a.out) + (t * a.heads + h) * a.head_dim + p;
        for (int r = 0; r < R; r++) put(out + r, sums[r] + d[h] * value[r]);
    }

    const Args& a;
    Chains chains;
    int64_t padded;
    float *b, *c, *dt, *decay, *d;
};

}  // namespace

PLAIT_OP(ssd, Args) {
    if (args->step.tokens == 0) return;
    with_dtype(args->dtype, [&](auto* type) {
        Ssd<std::remove_pointer_t<decltype(type)>> op(*args);
        op.prepare();
        int64_t vectors = (args->n + LANES - 1) / LANES;
        if (vectors <= 1)
            op.template run<1>();
        else if (vectors <= 2)
            op.template run<2>();
        else if (vectors <= 4)
            op.template run<4>();
        else if (vectors <= 8)
            op.template run<8>();
        else
            op.template run<16>();
    });
}

}  // namespace plait
