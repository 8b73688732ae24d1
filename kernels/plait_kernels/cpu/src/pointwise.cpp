// Norms, gates and rotary: one pass over a row each, fp32 inside.
#include "op.h"

namespace plait {
namespace {

template <class T, class Value>
float mean_square(int64_t n, const Value& value) {
    vf squares = {};
    each_vector(n, [&](int64_t i, int lanes) {
        vf v = value(i, lanes);
        squares = fma(v, v, squares);
    });
    return sum(squares) / float(n);
}

template <class T>
void norm_row(const T* x, const T* weight, T* out, int64_t n, float eps, float offset) {
    float scale = 1.0f / std::sqrt(mean_square<T>(n, [&](int64_t i, int lanes) { return load_some(x + i, lanes); }) + eps);
    each_vector(n, [&](int64_t i, int lanes) {
        vf v = load_some(x + i, lanes) * scale;
        store_some(out + i, weight ? v * (load_some(weight + i, lanes) + offset) : v, lanes);
    });
}

struct RmsNorm {
    int64_t dtype, outer, inner, n;
    const void* x;
    int64_t outer_stride, inner_stride;
    const void* weight;
    void* out;
    double eps, offset;
};

struct AddRmsNorm {
    int64_t dtype, rows, n;
    const void* x;
    int64_t x_stride;
    const void* residual;
    int64_t residual_stride;
    const void* weight;
    void *normed, *summed;
    double eps, offset, scale;
};

struct GatedRmsNorm {
    int64_t dtype, rows, n, weight_width, group, norm_first;
    const void* x;
    int64_t x_stride;
    const void* gate;
    int64_t gate_stride;
    const void* weight;
    void* out;
    double eps;
};

struct GatedActivation {
    int64_t dtype, rows, n, kind;  // 0: silu, 1: gelu_tanh, 2: sigmoid
    const void* gate;
    int64_t gate_stride;
    const void* up;
    int64_t up_stride;
    void* out;
};

struct Rotary {
    int64_t dtype, tokens, heads, dim, rotary_dim;
    const void* x;
    int64_t token_stride, head_stride;
    const int64_t* positions;
    const float* cos_sin;
    void* out;
};

// One group of a gated norm: `group` channels from `at` on.
template <class T>
void gated_group(const T* x, const T* gate, const T* weight, T* out, int64_t n, float eps, bool norm_first) {
    auto value = [&](int64_t i, int lanes) {
        vf v = load_some(x + i, lanes);
        return norm_first ? v : v * silu(load_some(gate + i, lanes));
    };
    float scale = 1.0f / std::sqrt(mean_square<T>(n, value) + eps);
    each_vector(n, [&](int64_t i, int lanes) {
        vf v = value(i, lanes) * scale * load_some(weight + i, lanes);
        store_some(out + i, norm_first ? v * silu(load_some(gate + i, lanes)) : v, lanes);
    });
}

template <class T>
void turn_head(const T* x, const float* cos, T* out, int64_t dim, int64_t rotary_dim) {
    int64_t half = rotary_dim / 2;
    const float* sin = cos + half;
    each_vector(half, [&](int64_t i, int lanes) {
        vf a = load_some(x + i, lanes), b = load_some(x + half + i, lanes);
        vf c = load_some(cos + i, lanes), s = load_some(sin + i, lanes);
        store_some(out + i, a * c - b * s, lanes);
        store_some(out + half + i, b * c + a * s, lanes);
    });
    std::memcpy(out + rotary_dim, x + rotary_dim, (dim - rotary_dim) * sizeof(T));
}

}  // namespace

PLAIT_OP(rms_norm, RmsNorm) {
    const RmsNorm a = *args;
    with_dtype(a.dtype, [&](auto* type) {
        using T = std::remove_pointer_t<decltype(type)>;
        split(a.outer * a.inner, double(a.n), [&](int64_t begin, int64_t end) {
            for (int64_t r = begin; r < end; r++) {
                const T* x = static_cast<const T*>(a.x) + r / a.inner * a.outer_stride + r % a.inner * a.inner_stride;
                norm_row(x, static_cast<const T*>(a.weight), static_cast<T*>(a.out) + r * a.n, a.n, float(a.eps), float(a.offset));
            }
        });
    });
}

PLAIT_OP(add_rms_norm, AddRmsNorm) {
    const AddRmsNorm a = *args;
    with_dtype(a.dtype, [&](auto* type) {
        using T = std::remove_pointer_t<decltype(type)>;
        split(a.rows, double(a.n), [&](int64_t begin, int64_t end) {
            for (int64_t r = begin; r < end; r++) {
                const T* x = static_cast<const T*>(a.x) + r * a.x_stride;
                const T* residual = static_cast<const T*>(a.residual) + r * a.residual_stride;
                T* summed = static_cast<T*>(a.summed) + r * a.n;
                each_vector(a.n, [&](int64_t i, int lanes) {
                    store_some(summed + i, load_some(residual + i, lanes) + load_some(x + i, lanes) * float(a.scale), lanes);
                });
                T* normed = static_cast<T*>(a.normed) + r * a.n;
                norm_row(summed, static_cast<const T*>(a.weight), normed, a.n, float(a.eps), float(a.offset));
            }
        });
    });
}

PLAIT_OP(gated_rms_norm, GatedRmsNorm) {
    const GatedRmsNorm a = *args;
    with_dtype(a.dtype, [&](auto* type) {
        using T = std::remove_pointer_t<decltype(type)>;
        split(a.rows, 8.0 * a.n, [&](int64_t begin, int64_t end) {
            for (int64_t r = begin; r < end; r++) {
                const T* x = static_cast<const T*>(a.x) + r * a.x_stride;
                const T* gate = static_cast<const T*>(a.gate) + r * a.gate_stride;
                T* out = static_cast<T*>(a.out) + r * a.n;
                for (int64_t i = 0; i < a.n; i += a.group) {
                    const T* weight = static_cast<const T*>(a.weight) + i % a.weight_width;
                    gated_group(x + i, gate + i, weight, out + i, a.group, float(a.eps), a.norm_first != 0);
                }
            }
        });
    });
}

PLAIT_OP(gated_activation, GatedActivation) {
    const GatedActivation a = *args;
    with_dtype(a.dtype, [&](auto* type) {
        using T = std::remove_pointer_t<decltype(type)>;
        split(a.rows, 4.0 * a.n, [&](int64_t begin, int64_t end) {
            for (int64_t r = begin; r < end; r++) {
                const T* gate = static_cast<const T*>(a.gate) + r * a.gate_stride;
                const T* up = static_cast<const T*>(a.up) + r * a.up_stride;
                T* out = static_cast<T*>(a.out) + r * a.n;
                each_vector(a.n, [&](int64_t i, int lanes) {
                    vf g = load_some(gate + i, lanes);
                    vf opening = a.kind == 0 ? silu(g) : a.kind == 1 ? gelu_tanh(g) : sigmoid(g);
                    store_some(out + i, opening * load_some(up + i, lanes), lanes);
                });
            }
        });
    });
}

PLAIT_OP(rotary, Rotary) {
    const Rotary a = *args;
    with_dtype(a.dtype, [&](auto* type) {
        using T = std::remove_pointer_t<decltype(type)>;
        split(a.tokens, double(a.heads) * a.dim, [&](int64_t begin, int64_t end) {
            for (int64_t t = begin; t < end; t++) {
                const T* x = static_cast<const T*>(a.x) + t * a.token_stride;
                T* out = static_cast<T*>(a.out) + t * a.heads * a.dim;
                const float* angles = a.cos_sin + a.positions[t] * a.rotary_dim;
                for (int64_t h = 0; h < a.heads; h++)
                    turn_head(x + h * a.head_stride, angles, out + h * a.dim, a.dim, a.rotary_dim);
            }
        });
    });
}

}  // namespace plait
