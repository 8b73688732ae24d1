// How every scan walks a step (see segments.py): a chain is the tokens of one sequence in this step, one decode or
// consecutive rows of the chunk table. Its state is read from the sequence's slot, carried from row to row, copied to
// wherever a row emits it, and written back at the end.
#pragma once

#include <vector>

#include "op.h"

namespace plait {

struct Step {
    int64_t tokens, decodes, chunks;
    const int32_t* table;  // [chunks, 3]: start, end, sequence
    const int32_t* rows;   // [sequences]: granule of the slot
    const int32_t* emits;  // [chunks] or null: granule to emit to, -1 for nowhere
    void* view;
    int64_t granule;  // values of the view's dtype in a granule
};

struct Row {
    int64_t begin, end, emit;
};

class Chains {
  public:
    explicit Chains(const Step& step) : step_(step) {
        for (int64_t i = 0; i < step.chunks; i++)
            if (i == 0 || sequence(i) != sequence(i - 1)) first_.push_back(i);
        first_.push_back(step.chunks);
    }

    int64_t size() const { return step_.decodes + int64_t(first_.size()) - 1; }

    template <class S>
    S* slot(int64_t chain) const {
        int64_t row = chain < step_.decodes ? chain : sequence(first_[chain - step_.decodes]);
        return at<S>(step_.rows[row]);
    }

    template <class S>
    S* at(int64_t granule) const {
        return static_cast<S*>(step_.view) + granule * step_.granule;
    }

    int64_t rows(int64_t chain) const {
        return chain < step_.decodes ? 1 : first_[chain - step_.decodes + 1] - first_[chain - step_.decodes];
    }

    Row row(int64_t chain, int64_t i) const {
        if (chain < step_.decodes) return {chain, chain + 1, -1};
        int64_t chunk = first_[chain - step_.decodes] + i;
        return {step_.table[3 * chunk], step_.table[3 * chunk + 1], step_.emits ? step_.emits[chunk] : -1};
    }

    int64_t begin(int64_t chain) const { return row(chain, 0).begin; }
    int64_t end(int64_t chain) const { return row(chain, rows(chain) - 1).end; }
    int64_t length(int64_t chain) const { return end(chain) - begin(chain); }

  private:
    int64_t sequence(int64_t chunk) const { return step_.table[3 * chunk + 2]; }

    const Step& step_;
    std::vector<int64_t> first_;
};

}  // namespace plait
