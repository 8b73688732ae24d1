"""How kernels address state: granule-indexed strided views of one arena, a page table per step, a row per sequence.

A *view* of a named tensor is ``[granules, *inner]`` with ``stride(0)`` equal to one granule (256 bytes), so
neighbouring entries overlap: it may only be gathered from and put to by index, never iterated, copied or reduced as a
whole.
"""

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class Pages:
    """The pages of one paged group in one step; the same for all layers of the group.

    ``table``    int32 ``[sequences, max_pages]``: granule of each page, by page number; numbers that a sequence has not
                 reached, or whose window has passed, name the reserved page and must not influence the result
    ``write_pages``, ``write_offsets``  int64 ``[tokens]``: where each token of the flat batch stores its entry
    ``page_size``  entries in a page; inner shape of a view is ``[page_size, *entry]``
    """

    table: Tensor
    write_pages: Tensor
    write_offsets: Tensor
    page_size: int


@dataclass(frozen=True)
class Slots:
    """The slot rows of one *layer* of a slot group in one step.

    ``rows``   int32 ``[sequences]``: granule of the row that each sequence owns; read at its first token and written
               after its last. A fresh slot is zero, so there is no case without an initial state.
    ``emits``  int32 ``[chunks]`` or None: where to write the state after each row of the chunk table, -1 for nowhere
    """

    rows: Tensor
    emits: Tensor | None = None
