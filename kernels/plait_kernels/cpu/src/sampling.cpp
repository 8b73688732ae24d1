// From logits to tokens: see sampling/__init__.py for the order of things. Each row by itself; probabilities are fp32
// exponentials summed in fp64 over eight lines, so that a sum is the same in every batch.
#include <limits>
#include <vector>

#include "op.h"

namespace plait {
namespace {

struct Sample {
    int64_t rows, vocabulary;
    const float* logits;
    int64_t row_stride;
    const float* temperature;
    const int64_t* top_k;
    const float *top_p, *min_p;
    const double* uniform;
    int64_t* tokens;
    double greedy_below;
};

struct Logprobs {
    int64_t rows, vocabulary, k;
    const float* logits;
    int64_t row_stride;
    const int64_t* chosen;
    float* chosen_out;
    int64_t *ranks, *top_ids;
    float* top;
};

// The first index of the greatest value; NaN is never it.
int64_t best_of(const float* x, int64_t n) {
    float best = -std::numeric_limits<float>::infinity();
    vf lines = splat(best);
    each_vector(n, [&](int64_t i, int lanes) {
        if (lanes == LANES)
            lines = max(load(x + i), lines);
        else
            for (int j = 0; j < lanes; j++) best = x[i + j] > best ? x[i + j] : best;
    });
    float all[LANES];
    store(all, lines);
    for (float value : all) best = value > best ? value : best;
    for (int64_t i = 0; i < n; i++)
        if (x[i] == best) return i;
    return 0;
}

double sum_up(const float* x, int64_t n) {
    double lines[8] = {};
    int64_t i = 0;
    for (; i + 8 <= n; i += 8)
        for (int j = 0; j < 8; j++) lines[j] += x[i + j];
    for (int j = 0; i < n; i++, j++) lines[j] += x[i];
    return ((lines[0] + lines[1]) + (lines[2] + lines[3])) + ((lines[4] + lines[5]) + (lines[6] + lines[7]));
}

class Row {
  public:
    Row(const Sample& args, int64_t row) : a(args), n(args.vocabulary), logits(args.logits + row * args.row_stride) {
        struct Weights;
        weights = scratch<Weights>(n);
        temperature = a.temperature[row], top_p = a.top_p[row], min_p = a.min_p[row], uniform = a.uniform[row];
        top_k = a.top_k[row] > 0 ? std::min(a.top_k[row], n) : n;
    }

    int64_t sample() {
        int64_t best = best_of(logits, n);
        if (temperature < a.greedy_below) return best;
        float top = logits[best];
        each_vector(n, [&](int64_t i, int lanes) {
            // The maximum goes first: a small temperature cannot overflow what is at most 0.
            vf w = exp((load_some(logits + i, lanes) - top) / temperature);
            store_some(weights + i, w < min_p ? vf{} : w, lanes);
        });
        if (top_k < n || top_p < 1.0f) limit();
        return draw();
    }

  private:
    // Zeroes all weights but the first top_k, and of those all behind the one that reaches top_p, in the order of
    // falling logit and rising token.
    void limit() {
        std::vector<int32_t> order = candidates();
        auto before = [&](int32_t x, int32_t y) { return logits[x] != logits[y] ? logits[x] > logits[y] : x < y; };
        std::sort(order.begin(), order.end(), before);
        if (int64_t(order.size()) > top_k) order.resize(size_t(top_k));
        if (top_p < 1.0f) {
            double total = 0, reached = 0;
            if (top_k < n)
                for (int32_t token : order) total += weights[token];
            else
                total = sum_up(weights, n);
            size_t kept = 0;
            while (kept < order.size() && reached < double(top_p) * total) reached += weights[order[kept++]];
            order.resize(kept);
        }
        std::vector<float> keep(order.size());
        for (size_t i = 0; i < order.size(); i++) keep[i] = weights[order[i]];
        std::fill(weights, weights + n, 0.0f);
        for (size_t i = 0; i < order.size(); i++) weights[order[i]] = keep[i];
    }

    // Tokens that surely hold all that is kept: those above a threshold that falls until they are enough.
    std::vector<int32_t> candidates() const {
        std::vector<int32_t> found;
        double enough = top_k < n ? std::numeric_limits<double>::infinity() : double(top_p) * sum_up(weights, n);
        for (float threshold = 0.1f;; threshold *= 0.05f) {
            if (threshold < 1e-30f) threshold = 0.0f;
            found.clear();
            double mass = 0;
            each_vector(n, [&](int64_t i, int lanes) {
                vi over = load_some(weights + i, lanes) > threshold;
                if (!any(over)) return;
                for (int j = 0; j < lanes; j++)
                    if (weights[i + j] > threshold) found.push_back(int32_t(i + j)), mass += weights[i + j];
            });
            if (int64_t(found.size()) >= top_k || mass >= enough || threshold == 0.0f) return found;
        }
    }

    static bool any(vi mask) {
        int32_t seen = 0;
        for (int i = 0; i < LANES; i++) seen |= mask[i];
        return seen != 0;
    }

    // The first token whose cumulated weight passes uniform * total.
    int64_t draw() const {
        constexpr int64_t STRETCH = 256;
        double total = 0, passed = 0;
        for (int64_t i = 0; i < n; i += STRETCH) total += sum_up(weights + i, std::min(STRETCH, n - i));
        double goal = uniform * total;
        for (int64_t i = 0; i < n; i += STRETCH) {
            int64_t end = std::min(n, i + STRETCH);
            double stretch = sum_up(weights + i, end - i), inside = passed;
            for (int64_t j = i; passed + stretch > goal && j < end; j++) {
                inside += weights[j];
                if (weights[j] > 0 && inside > goal) return j;
            }
            passed += stretch;
        }
        int64_t last = n - 1;  // uniform * total may round up to the total
        while (last > 0 && !(weights[last] > 0)) last--;
        return last;
    }

    const Sample& a;
    int64_t n, top_k;
    const float* logits;
    float *weights, temperature, top_p, min_p;
    double uniform;
};

void row_logprobs(const Logprobs& a, int64_t row) {
    const float* x = a.logits + row * a.row_stride;
    int64_t n = a.vocabulary, k = std::min(a.k, n);
    struct Weights;
    float* weights = scratch<Weights>(n);
    float top = x[best_of(x, n)], chosen = x[a.chosen[row]];
    each_vector(n, [&](int64_t i, int lanes) { store_some(weights + i, exp(load_some(x + i, lanes) - top), lanes); });
    float normaliser = float(top + std::log(sum_up(weights, n)));
    int64_t above = 0;
    for (int64_t i = 0; i < n; i++) above += x[i] > chosen;
    a.chosen_out[row] = chosen - normaliser;
    a.ranks[row] = above + 1;
    std::vector<int32_t> order(static_cast<size_t>(n));
    for (int64_t i = 0; i < n; i++) order[i] = int32_t(i);
    auto before = [&](int32_t p, int32_t q) { return x[p] != x[q] ? x[p] > x[q] : p < q; };
    std::partial_sort(order.begin(), order.begin() + k, order.end(), before);
    for (int64_t i = 0; i < k; i++) a.top_ids[row * k + i] = order[i], a.top[row * k + i] = x[order[i]] - normaliser;
}

}  // namespace

PLAIT_OP(sample, Sample) {
    split(args->rows, double(args->vocabulary) * 3, [&](int64_t begin, int64_t end) {
        for (int64_t row = begin; row < end; row++) args->tokens[row] = Row(*args, row).sample();
    });
}

PLAIT_OP(argmax, Sample) {
    split(args->rows, double(args->vocabulary) / 4, [&](int64_t begin, int64_t end) {
        for (int64_t row = begin; row < end; row++)
            args->tokens[row] = best_of(args->logits + row * args->row_stride, args->vocabulary);
    });
}

PLAIT_OP(logprobs, Logprobs) {
    split(args->rows, double(args->vocabulary) * 20, [&](int64_t begin, int64_t end) {
        for (int64_t row = begin; row < end; row++) row_logprobs(*args, row);
    });
}

}  // namespace plait
