// Depthwise causal convolution. Outputs need only inputs, so tokens are cut into pieces freely; slots are written after
// all outputs are done.
#include "scan.h"

namespace plait {
namespace {

constexpr int64_t PIECE = 64;  // tokens of a task

struct Args {
    int64_t dtype, state_dtype, channels, width, silu;
    const void* x;
    int64_t x_stride;
    const void *weight, *bias;
    void* out;
    Step step;
};

template <class T, class S>
class Conv {
  public:
    explicit Conv(const Args& args) : a(args), chains(args.step), padded(round_up(args.channels, LANES)) {
        struct Taps;
        taps = scratch<Taps>((a.width + 1) * padded);
        const T* weight = static_cast<const T*>(a.weight);
        for (int64_t c = 0; c < a.channels; c++)
            for (int64_t j = 0; j < a.width; j++) taps[j * padded + c] = to_float(weight[c * a.width + j]);
        for (int64_t c = 0; c < a.channels; c++)
            taps[a.width * padded + c] = a.bias ? to_float(static_cast<const T*>(a.bias)[c]) : 0.0f;
    }

    void run() {
        int64_t pieces = 0;
        for (int64_t chain = 0; chain < chains.size(); chain++) pieces += (chains.length(chain) + PIECE - 1) / PIECE;
        if (pieces == chains.size()) {
            split(pieces, double(a.step.tokens) / pieces * a.channels * a.width / 2, [&](int64_t begin, int64_t end) {
                for (int64_t chain = begin; chain < end; chain++) convolve(chain, chains.begin(chain), chains.end(chain));
            });
        } else {
            for (int64_t chain = 0; chain < chains.size(); chain++) {
                int64_t first = chains.begin(chain), last = chains.end(chain);
                share((last - first + PIECE - 1) / PIECE, [&](int64_t i) {
                    convolve(chain, first + i * PIECE, std::min(last, first + (i + 1) * PIECE));
                });
            }
        }
        split(chains.size(), 2.0 * a.channels * a.width, [&](int64_t begin, int64_t end) {
            for (int64_t chain = begin; chain < end; chain++) remember(chain);
        });
    }

  private:
    const T* input(int64_t token) const { return static_cast<const T*>(a.x) + token * a.x_stride; }

    // The slot's inputs in front of a chain as rows of channels, fp32 [width - 1, padded].
    const float* history(int64_t chain) const {
        struct History;
        float* rows = scratch<History>(a.width * padded);
        const S* slot = chains.template slot<S>(chain);
        int64_t kept = a.width - 1;
        if (kept == 3) {
            for (int64_t c = 0; c < a.channels; c++)
                for (int64_t j = 0; j < 3; j++) rows[j * padded + c] = to_float(slot[c * 3 + j]);
        } else {
            for (int64_t c = 0; c < a.channels; c++)
                for (int64_t j = 0; j < kept; j++) rows[j * padded + c] = to_float(slot[c * kept + j]);
        }
        return rows;
    }

    // Tokens [begin, end) of the chain.
    void convolve(int64_t chain, int64_t begin, int64_t end) const {
        int64_t first = chains.begin(chain), kept = a.width - 1;
        const float* before = begin < first + kept ? history(chain) : nullptr;
        for (int64_t t = begin; t < end; t++) {
            T* out = static_cast<T*>(a.out) + t * a.channels;
            int64_t known = std::min(kept, t - first);  // taps in this step, besides the token's own
            each_vector(a.channels, [&](int64_t c, int lanes) {
                vf y = load(taps + a.width * padded + c);
                int64_t j = 0;
                for (; j < kept - known; j++) y = fma(load(taps + j * padded + c), load_some(before + (j + t - first) * padded + c, lanes), y);
                for (; j <= kept; j++) y = fma(load(taps + j * padded + c), load_some(input(t - kept + j) + c, lanes), y);
                store_some(out + c, a.silu ? silu(y) : y, lanes);
            });
        }
    }

    // Writes the last inputs before the end of every emitting row, and of the chain, oldest first.
    void remember(int64_t chain) const {
        const float* before = history(chain);
        for (int64_t i = 0; i < chains.rows(chain); i++) {
            Row row = chains.row(chain, i);
            if (row.emit >= 0) write(chains.template at<S>(row.emit), before, chains.begin(chain), row.end);
        }
        write(chains.template slot<S>(chain), before, chains.begin(chain), chains.end(chain));
    }

    void write(S* slot, const float* before, int64_t first, int64_t end) const {
        int64_t kept = a.width - 1;
        for (int64_t j = 0; j < kept; j++) {
            int64_t token = end - kept + j;
            if (token >= first) {
                const T* x = input(token);
                for (int64_t c = 0; c < a.channels; c++) put(slot + c * kept + j, to_float(x[c]));
            } else {
                const float* x = before + (token - first + kept) * padded;
                for (int64_t c = 0; c < a.channels; c++) put(slot + c * kept + j, x[c]);
            }
        }
    }

    const Args& a;
    Chains chains;
    int64_t padded;
    float* taps;
};

}  // namespace

PLAIT_OP(causal_conv, Args) {
    with_dtype(args->dtype, [&](auto* x) {
        with_dtype(args->state_dtype, [&](auto* state) {
            Conv<std::remove_pointer_t<decltype(x)>, std::remove_pointer_t<decltype(state)>>(*args).run();
        });
    });
}

}  // namespace plait
