// The gated delta rule, token by token. A tile is LANES columns of one head's state [dk, dv], kept in the first-level
// cache while it walks through all tokens of its chain: columns never meet, so the result is the same to the bit
// however tokens were cut into steps and chunks.
#include "scan.h"

namespace plait {
namespace {

struct Args {
    int64_t dtype, param_dtype, key_heads, value_heads, dk, dv;
    const void* q;
    int64_t q_token, q_head;
    const void* k;
    int64_t k_token, k_head;
    const void* v;
    int64_t v_token, v_head;
    const void* a;
    int64_t a_token;
    const void* b;
    int64_t b_token;
    const void *a_log, *dt_bias;
    void* out;
    Step step;
};

template <class T>
class Delta {
  public:
    explicit Delta(const Args& args) : a(args), chains(args.step) {
        struct Keys;
        struct Gates;
        int64_t tokens = a.step.tokens;
        q = scratch<Keys>(2 * tokens * a.key_heads * a.dk);
        k = q + tokens * a.key_heads * a.dk;
        decay = scratch<Gates>(2 * tokens * a.value_heads);
        beta = decay + tokens * a.value_heads;
    }

    void prepare() {
        with_dtype(a.param_dtype, [&](auto* type) {
            using P = std::remove_pointer_t<decltype(type)>;
            const P *a_log = static_cast<const P*>(a.a_log), *bias = static_cast<const P*>(a.dt_bias);
            split(a.step.tokens, a.value_heads * 200.0 + a.key_heads * a.dk, [&](int64_t begin, int64_t end) {
                for (int64_t t = begin; t < end; t++) {
                    for (int64_t h = 0; h < a.key_heads; h++) {
                        int64_t to = (t * a.key_heads + h) * a.dk;
                        unit(static_cast<const T*>(a.q) + t * a.q_token + h * a.q_head, q + to, 1.0f / std::sqrt(float(a.dk)));
                        unit(static_cast<const T*>(a.k) + t * a.k_token + h * a.k_head, k + to, 1.0f);
                    }
                    for (int64_t h = 0; h < a.value_heads; h++) {
                        float step = softplus(to_float(static_cast<const T*>(a.a)[t * a.a_token + h]) + to_float(bias[h]));
                        float open = to_float(static_cast<const T*>(a.b)[t * a.b_token + h]);
                        decay[t * a.value_heads + h] = std::exp(-std::exp(to_float(a_log[h])) * step);
                        beta[t * a.value_heads + h] = 1.0f / (1.0f + std::exp(-open));
                    }
                }
            });
        });
    }

    void run() const {
        int64_t columns = (a.dv + LANES - 1) / LANES;
        double each = double(a.step.tokens) / chains.size() * a.dk * 3;
        split(chains.size() * a.value_heads * columns, each, [&](int64_t begin, int64_t end) {
            for (int64_t i = begin; i < end; i++)
                tile(i / columns / a.value_heads, i / columns % a.value_heads, i % columns * LANES);
        });
    }

  private:
    // x / |x| * scale; 1e-6 is added to the squared length, as the models were trained.
    void unit(const T* x, float* out, float scale) const {
        vf squares = {};
        each_vector(a.dk, [&](int64_t i, int lanes) {
            vf v = load_some(x + i, lanes);
            squares = fma(v, v, squares);
        });
        float factor = scale / std::sqrt(sum(squares) + 1e-6f);
        each_vector(a.dk, [&](int64_t i, int lanes) { store_some(out + i, load_some(x + i, lanes) * factor, lanes); });
    }

    void tile(int64_t chain, int64_t h, int64_t column) const {
        int64_t at = h * a.dk * a.dv + column;
        int lanes = int(std::min<int64_t>(LANES, a.dv - column));
        struct State;
        float* s = scratch<State>(a.dk * LANES);
        float* slot = chains.template slot<float>(chain) + at;
        for (int64_t i = 0; i < a.dk; i++) store(s + i * LANES, load_some(slot + i * a.dv, lanes));
        for (int64_t i = 0; i < chains.rows(chain); i++) {
            Row row = chains.row(chain, i);
            for (int64_t t = row.begin; t < row.end; t++) token(s, t, h, column, lanes);
            if (row.emit >= 0) write(chains.template at<float>(row.emit) + at, s, lanes);
        }
        write(slot, s, lanes);
    }

    void write(float* slot, const float* s, int lanes) const {
        for (int64_t i = 0; i < a.dk; i++) store_some(slot + i * a.dv, load(s + i * LANES), lanes);
    }

    void token(float* s, int64_t t, int64_t h, int64_t column, int lanes) const {
        int64_t key = t * a.key_heads + h / (a.value_heads / a.key_heads), gate = t * a.value_heads + h;
        const float *qt = q + key * a.dk, *kt = k + key * a.dk;
        float keep = decay[gate];
        vf known[4] = {}, o[4] = {};
        int64_t i = 0;
        for (; i + 4 <= a.dk; i += 4)
            for (int j = 0; j < 4; j++) known[j] = fma(load(s + (i + j) * LANES), splat(kt[i + j]), known[j]);
        for (; i < a.dk; i++) known[0] = fma(load(s + i * LANES), splat(kt[i]), known[0]);
        vf seen = ((known[0] + known[1]) + (known[2] + known[3])) * keep;
        vf value = load_some(static_cast<const T*>(a.v) + t * a.v_token + h * a.v_head + column, lanes);
        vf fresh = (value - seen) * beta[gate];
        auto update = [&](int64_t row, vf& sum) {
            vf next = fma(fresh, splat(kt[row]), load(s + row * LANES) * keep);
            store(s + row * LANES, next);
            sum = fma(next, splat(qt[row]), sum);
        };
        for (i = 0; i + 4 <= a.dk; i += 4)
            for (int j = 0; j < 4; j++) update(i + j, o[j]);
        for (; i < a.dk; i++) update(i, o[0]);
        T* out = static_cast<T*>(a.out) + (t * a.value_heads + h) * a.dv + column;
        store_some(out, (o[0] + o[1]) + (o[2] + o[3]), lanes);
    }

    const Args& a;
    Chains chains;
    float *q, *k, *decay, *beta;
};

}  // namespace

PLAIT_OP(gated_delta_rule, Args) {
    if (args->step.tokens == 0) return;
    with_dtype(args->dtype, [&](auto* type) {
        Delta<std::remove_pointer_t<decltype(type)>> op(*args);
        op.prepare();
        op.run();
    });
}

}  // namespace plait
