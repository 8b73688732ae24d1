// out = x weight^T + bias, weight [n, k] as checkpoints store it. bf16 is multiplied in fp32.
//
// The order of additions is the same for every number of rows, so a row's result does not depend on what is beside it.
#include "linear_few.h"
#include "linear_many.h"

namespace plait {
namespace {

struct Args {
    int64_t dtype, out_dtype, rows, outs, ins;
    const void* x;
    int64_t x_stride;
    const void *weight, *bias;
    void* out;
};

template <class T, class Out>
void linear(const Args& a) {
    Operands<Out, T> operands{a.rows,
                              a.outs,
                              a.ins,
                              static_cast<const T*>(a.x),
                              a.x_stride,
                              static_cast<const T*>(a.weight),
                              static_cast<const T*>(a.bias),
                              static_cast<Out*>(a.out)};
    if (a.rows <= FewRows<Out, T>::MOST)
        FewRows<Out, T>(operands).run();
    else
        ManyRows<Out, T>(operands).run();
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
