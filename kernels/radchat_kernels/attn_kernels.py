"""Attention over a work list: K1 attends items, K2 merges the parts of a row. Two launches a layer.

An item is some query rows × one run of tokens (``pack.WorkList``); a program does one item for one
KV head. Scores, maximum, sum and output are float32, in base 2:

    s_t = scale · log2(e) · q · k_t     m = max s_t     l = Σ exp2(s_t - m)     lse = m + log2(l)

K1 writes the output of a row's only part to o, any other to mid_o with its lse to mid_lse; a part
without tokens is o = 0, lse = -inf. K2: o = Σ exp2(lse_i - max) o_i / Σ exp2(lse_i - max).

Where each loop ends is read from the device: no argument of a launch depends on a length.
"""

# Kernels have no types that Python's checkers know, and constants in capitals.
# `if`s of constants stay by themselves: only they keep code out of the compiled kernel.
# ruff: noqa: ANN001, ANN201, ANN202, N803, SIM102
# mypy: disable-error-code="no-untyped-def, untyped-decorator"

from __future__ import annotations

from radchat_kernels._triton import jit, tl


@jit
def _capped(s, cap):
    """Natural scores → capped, in base 2; tanh through exp2, exact at both infinities."""
    e = tl.exp2(s * (2.8853900817779268 / cap))
    return (cap * 1.4426950408889634) * (1.0 - 2.0 / (1.0 + e))


@jit
def _block(
    q, m_i, l_i, acc,
    start, tok_end, pos0, qpos, kvh, scale, softcap,
    k_ptr, v_ptr, pages_ptr,
    stride_kp, stride_kt, stride_kh, stride_vp, stride_vt, stride_vh,
    D: tl.constexpr, D_PAD: tl.constexpr, PAGE: tl.constexpr, BLOCK_N: tl.constexpr,
    I64: tl.constexpr, MASKED: tl.constexpr, CAUSAL: tl.constexpr, WINDOW: tl.constexpr,
    HAS_SOFTCAP: tl.constexpr,
):  # fmt: skip
    """BLOCK_N tokens from ``start`` on; all of them seen by all rows unless MASKED."""
    t = start + tl.arange(0, BLOCK_N)
    d = tl.arange(0, D_PAD)
    t_ok = t < tok_end
    if MASKED:
        page = tl.load(pages_ptr + t // PAGE, mask=t_ok, other=0)
    else:
        page = tl.load(pages_ptr + t // PAGE)
    if I64:
        page = page.to(tl.int64)
    slot = t % PAGE
    k_at = k_ptr + (page * stride_kp + slot * stride_kt + kvh * stride_kh)[None, :] + d[:, None]
    v_at = v_ptr + (page * stride_vp + slot * stride_vt + kvh * stride_vh)[:, None] + d[None, :]
    if MASKED:
        k = tl.load(k_at, mask=t_ok[None, :] & (d < D)[:, None], other=0.0)
    elif D == D_PAD:
        k = tl.load(k_at)
    else:
        k = tl.load(k_at, mask=(d < D)[:, None], other=0.0)
    s = tl.dot(q, k.to(q.dtype), input_precision="ieee") * scale
    if HAS_SOFTCAP:
        s = _capped(s, softcap)
    if MASKED:
        seen = t_ok[None, :]
        if CAUSAL:
            seen = seen & (pos0 + t[None, :] <= qpos[:, None])
        if WINDOW > 0:
            seen = seen & (pos0 + t[None, :] > qpos[:, None] - WINDOW)
        s = tl.where(seen, s, float("-inf"))
    m_new = tl.maximum(m_i, tl.max(s, 1))
    m_use = m_new
    if MASKED:  # a row that has seen nothing yet: -inf - -inf is NaN
        m_use = tl.where(m_new == float("-inf"), 0.0, m_new)
    p = tl.exp2(s - m_use[:, None])
    alpha = tl.exp2(m_i - m_use)
    l_i = l_i * alpha + tl.sum(p, 1)
    acc = acc * alpha[:, None]
    if MASKED:
        v = tl.load(v_at, mask=t_ok[:, None] & (d < D)[None, :], other=0.0)
    elif D == D_PAD:
        v = tl.load(v_at)
    else:
        v = tl.load(v_at, mask=(d < D)[None, :], other=0.0)
    acc = tl.dot(p.to(q.dtype), v.to(q.dtype), acc, input_precision="ieee")
    return m_new, l_i, acc


@jit
def _item(
    q_ptr, k_ptr, v_ptr, o_ptr, mid_o_ptr, mid_lse_ptr,
    item_ptr, rows_ptr, pages_ptr, positions_ptr, kvh, scale, softcap,
    stride_qt, stride_qh, stride_ot, stride_oh,
    stride_kp, stride_kt, stride_kh, stride_vp, stride_vt, stride_vh,
    stride_ms, stride_mh, stride_ls,
    G: tl.constexpr, D: tl.constexpr, D_PAD: tl.constexpr, PAGE: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, I64: tl.constexpr, CAUSAL: tl.constexpr,
    WINDOW: tl.constexpr, HAS_SOFTCAP: tl.constexpr, UPCAST: tl.constexpr,
):  # fmt: skip
    """One item's rows × group in a tile of BLOCK_M: query m is head m % G of row m // G."""
    row_begin = tl.load(item_ptr)
    row_count = tl.load(item_ptr + 1)
    page_begin = tl.load(item_ptr + 2)
    tok_begin = tl.load(item_ptr + 3)
    tok_end = tl.load(item_ptr + 4)
    pos0 = tl.load(item_ptr + 5)
    part_begin = tl.load(item_ptr + 6)
    dyn_row = tl.load(item_ptr + 7)
    if dyn_row >= 0:
        position = tl.load(positions_ptr + dyn_row).to(tl.int32)
        tok_end = tl.minimum(tok_end, position + 1 - pos0)
    m = tl.arange(0, BLOCK_M)
    d = tl.arange(0, D_PAD)
    r = m // G
    m_ok = r < row_count
    row = tl.load(rows_ptr + row_begin + r, mask=m_ok, other=0)
    qpos = r
    first = 0
    if CAUSAL or WINDOW > 0:
        qpos = tl.load(positions_ptr + row, mask=m_ok, other=0).to(tl.int32)
        first = tl.min(tl.where(m_ok, qpos, 2147483647), 0) - pos0  # the first row's own token
    part = part_begin + r
    if I64:
        row = row.to(tl.int64)
        part = part.to(tl.int64)
    head = kvh * G + m % G
    stored = m_ok[:, None] & (d < D)[None, :]
    q_at = q_ptr + (row * stride_qt + head * stride_qh)[:, None] + d[None, :]
    q = tl.load(q_at, mask=stored, other=0.0)
    if UPCAST:
        q = q.to(tl.float32)
    if not HAS_SOFTCAP:
        scale = scale * 1.4426950408889634
    m_i = tl.full([BLOCK_M], float("-inf"), tl.float32)
    l_i = tl.zeros([BLOCK_M], tl.float32)
    acc = tl.zeros([BLOCK_M, D_PAD], tl.float32)
    pages_ptr += page_begin
    body = tok_begin
    if WINDOW > 0:
        # every row's window moves, so all blocks are masked; those before all windows are skipped
        body = tl.maximum(tok_begin, first + 1 - WINDOW)
    else:
        # whole blocks that every row sees need no mask: a fifth fewer instructions
        safe_end = tok_end
        if CAUSAL:
            safe_end = tl.minimum(tok_end, first + 1)
        body = tok_begin + tl.maximum(safe_end - tok_begin, 0) // BLOCK_N * BLOCK_N
        for start in range(tok_begin, body, BLOCK_N):
            m_i, l_i, acc = _block(
                q, m_i, l_i, acc,
                start, tok_end, pos0, qpos, kvh, scale, softcap,
                k_ptr, v_ptr, pages_ptr,
                stride_kp, stride_kt, stride_kh, stride_vp, stride_vt, stride_vh,
                D, D_PAD, PAGE, BLOCK_N, I64, False, CAUSAL, WINDOW, HAS_SOFTCAP,
            )  # fmt: skip
    for start in range(body, tok_end, BLOCK_N):
        m_i, l_i, acc = _block(
            q, m_i, l_i, acc,
            start, tok_end, pos0, qpos, kvh, scale, softcap,
            k_ptr, v_ptr, pages_ptr,
            stride_kp, stride_kt, stride_kh, stride_vp, stride_vt, stride_vh,
            D, D_PAD, PAGE, BLOCK_N, I64, True, CAUSAL, WINDOW, HAS_SOFTCAP,
        )  # fmt: skip
    has = l_i > 0.0
    l_i = tl.where(has, l_i, 1.0)
    acc = acc / l_i[:, None]
    if part_begin < 0:
        o_at = o_ptr + (row * stride_ot + head * stride_oh)[:, None] + d[None, :]
        tl.store(o_at, acc.to(o_ptr.dtype.element_ty), mask=stored)
    else:
        mid_at = mid_o_ptr + (part * stride_ms + head * stride_mh)[:, None] + d[None, :]
        tl.store(mid_at, acc, mask=stored)
        lse = tl.where(has, m_i + tl.log2(l_i), float("-inf"))
        tl.store(mid_lse_ptr + part * stride_ls + head, lse, mask=m_ok)


@jit
def attend_kernel(
    q_ptr, k_ptr, v_ptr, o_ptr, mid_o_ptr, mid_lse_ptr,
    items_ptr, rows_ptr, pages_ptr, positions_ptr, n_items_ptr, scale, softcap,
    stride_qt, stride_qh, stride_ot, stride_oh,
    stride_kp, stride_kt, stride_kh, stride_vp, stride_vt, stride_vh,
    stride_ms, stride_mh, stride_ls,
    HKV: tl.constexpr, G: tl.constexpr, D: tl.constexpr, D_PAD: tl.constexpr, PAGE: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, WIDE_M: tl.constexpr, WIDE_N: tl.constexpr,
    I64: tl.constexpr, CAUSAL: tl.constexpr, WINDOW: tl.constexpr, HAS_SOFTCAP: tl.constexpr,
    UPCAST: tl.constexpr,
):  # fmt: skip
    """K1, grid (items × HKV): a narrow tile where an item fits in BLOCK_M queries, else a wide one.

    BLOCK_M or WIDE_M 0: there is no such item, and no code for one. Heads of one item run side
    by side. One axis, the only one on which CUDA takes more than 65,535 programs.
    """
    kvh = tl.program_id(0) % HKV
    item = tl.program_id(0) // HKV
    if item >= tl.load(n_items_ptr):
        return
    item_ptr = items_ptr + item * 8
    is_narrow = tl.load(item_ptr + 1) * G <= BLOCK_M
    if BLOCK_M > 0:
        if WIDE_M == 0 or is_narrow:
            _item(
                q_ptr, k_ptr, v_ptr, o_ptr, mid_o_ptr, mid_lse_ptr,
                item_ptr, rows_ptr, pages_ptr, positions_ptr, kvh, scale, softcap,
                stride_qt, stride_qh, stride_ot, stride_oh,
                stride_kp, stride_kt, stride_kh, stride_vp, stride_vt, stride_vh,
                stride_ms, stride_mh, stride_ls,
                G, D, D_PAD, PAGE, BLOCK_M, BLOCK_N, I64, CAUSAL, WINDOW, HAS_SOFTCAP, UPCAST,
            )  # fmt: skip
    if WIDE_M > 0:
        if BLOCK_M == 0 or not is_narrow:
            _item(
                q_ptr, k_ptr, v_ptr, o_ptr, mid_o_ptr, mid_lse_ptr,
                item_ptr, rows_ptr, pages_ptr, positions_ptr, kvh, scale, softcap,
                stride_qt, stride_qh, stride_ot, stride_oh,
                stride_kp, stride_kt, stride_kh, stride_vp, stride_vt, stride_vh,
                stride_ms, stride_mh, stride_ls,
                G, D, D_PAD, PAGE, WIDE_M, WIDE_N, I64, CAUSAL, WINDOW, HAS_SOFTCAP, UPCAST,
            )  # fmt: skip


@jit
def merge_kernel(
    mid_o_ptr, mid_lse_ptr, o_ptr, part_indptr_ptr, part_slots_ptr, sinks_ptr,
    stride_ms, stride_mh, stride_ls, stride_ot, stride_oh,
    HQ: tl.constexpr, D: tl.constexpr, D_PAD: tl.constexpr, BLOCK_S: tl.constexpr,
    BLOCK_H: tl.constexpr, HAS_SINKS: tl.constexpr, I64: tl.constexpr,
):  # fmt: skip
    """K2, grid (rows, blocks of heads): the parts of a row; a sink is one more lse without value.

    A row without parts has its output from K1, or is zero.
    """
    row = tl.program_id(0)
    begin = tl.load(part_indptr_ptr + row)
    end = tl.load(part_indptr_ptr + row + 1)
    if end <= begin:
        return
    head = tl.program_id(1) * BLOCK_H + tl.arange(0, BLOCK_H)
    h_ok = head < HQ
    d = tl.arange(0, D_PAD)
    stored = h_ok[:, None] & (d < D)[None, :]
    m_i = tl.full([BLOCK_H], float("-inf"), tl.float32)
    l_i = tl.zeros([BLOCK_H], tl.float32)
    if HAS_SINKS:
        m_i = tl.load(sinks_ptr + head, mask=h_ok, other=0.0).to(tl.float32) * 1.4426950408889634
        l_i += 1.0
    acc = tl.zeros([BLOCK_H, D_PAD], tl.float32)
    for first in range(begin, end, BLOCK_S):
        at = first + tl.arange(0, BLOCK_S)
        slot = tl.load(part_slots_ptr + at, mask=at < end, other=0)
        if I64:
            slot = slot.to(tl.int64)
        lse = tl.load(
            mid_lse_ptr + (slot * stride_ls)[:, None] + head[None, :],
            mask=(at < end)[:, None] & h_ok[None, :],
            other=float("-inf"),
        )
        m_new = tl.maximum(m_i, tl.max(lse, 0))
        m_use = tl.where(m_new == float("-inf"), 0.0, m_new)
        weight = tl.exp2(lse - m_use[None, :])
        alpha = tl.exp2(m_i - m_use)
        # a part without tokens may hold anything: it is never read
        part = tl.load(
            mid_o_ptr
            + (slot * stride_ms)[:, None, None]
            + (head * stride_mh)[None, :, None]
            + d[None, None, :],
            mask=(lse > float("-inf"))[:, :, None] & (d < D)[None, None, :],
            other=0.0,
        )
        acc = acc * alpha[:, None] + tl.sum(part * weight[:, :, None], 0)
        l_i = l_i * alpha + tl.sum(weight, 0)
        m_i = m_new
    out = acc / tl.where(l_i > 0.0, l_i, 1.0)[:, None]
    if I64:
        row = row.to(tl.int64)
    o_at = o_ptr + row * stride_ot + (head * stride_oh)[:, None] + d[None, :]
    tl.store(o_at, out.to(o_ptr.dtype.element_ty), mask=stored)
