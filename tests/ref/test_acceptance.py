"""Accept or correct, row by row: what is kept, what replaces a refusal, and what is refused with an error.

Chi-square tests use fixed seeds and fail below a p-value of `FALSE_ALARM`: for a right rule with fresh seeds, once in a
million runs of a test.
"""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from specdec_ref.acceptance import Verification, accept_probability, residual, verify_chain
from specdec_ref.sampling import Purpose, SamplingSettings, draw, probabilities, uniforms
from tests.ref import wrong_rules as wrong

FALSE_ALARM = 1e-6
HIGHEST = 1 - 2.0**-53
PAIR_B = ([0.5, 0.3, 0.2], [0.2, 0.5, 0.3])
PAIR_C = ([0.1, 0.2, 0.3, 0.4], [0.4, 0.3, 0.2, 0.1])
RED_BLUE = ([0.5, 0.5], [0.8, 0.2])


@pytest.fixture(autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def f64(values):
    return torch.tensor(values, dtype=torch.float64)


def laws(*shape, seed=0, dtype=torch.float64):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).softmax(-1).to(dtype)


def numbers(*shape, seed=0):
    return torch.rand(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def one_row(p, tokens, q, accept, correct, num_drafted=None, **options):
    """`verify_chain` on a batch of one, given lists; returns (num_accepted, next_token)."""
    result = verify_chain(
        f64([p]),
        torch.tensor([tokens], dtype=torch.int64),
        None if q is None else f64([q]),
        f64([accept]),
        f64([correct]),
        None if num_drafted is None else torch.tensor([num_drafted]),
        **options,
    )
    return int(result.num_accepted), int(result.next_token)


def one_hot(token, vocab=6):
    return [float(index == token) for index in range(vocab)]


# --- the two parts of the rule


def test_accept_probability_is_the_ratio_capped_at_one():
    p, q = f64([0.5, 0.3, 0.2, 0.0, 0.3]), f64([0.2, 0.5, 0.3, 0.6, 0.3])
    assert accept_probability(p, q).tolist() == pytest.approx([1, 0.6, 2 / 3, 0, 1])


@pytest.mark.parametrize(
    ("p", "q", "expected"),
    [
        (*PAIR_B, [1, 0, 0]),
        (*PAIR_C, [0, 0, 0.25, 0.75]),
        (*RED_BLUE, [0, 1]),
        ([0.6, 0.4, 0, 0], [0, 0, 0.5, 0.5], [0.6, 0.4, 0, 0]),
        ([0.5, 0.3, 0.2], [0, 1, 0], [5 / 7, 0, 2 / 7]),
        ([0.5, 0.3, 0.2], [0, 0, 0], [0.5, 0.3, 0.2]),  # no draft: the bonus
    ],
)
def test_residual_is_the_missing_mass_scaled(p, q, expected):
    assert residual(f64(p), f64(q)).tolist() == pytest.approx(expected, abs=1e-15)


@given(st.integers(0, 2**31), st.integers(2, 7), st.sampled_from([torch.float32, torch.float64]))
@settings(max_examples=100, derandomize=True, deadline=None)
def test_accepted_mass_and_residual_add_up_to_p(seed, vocab, dtype):
    """min(p, q) + (1 - sum min(p, q)) * residual = p: the identity behind the whole method."""
    p, q = laws(2, vocab, seed=seed, dtype=dtype).double()
    kept = q * accept_probability(p, q)
    assert torch.allclose(
        kept + (1 - kept.sum()) * residual(p, q), p, rtol=0, atol=1e-6 if dtype.itemsize < 8 else 1e-14
    )


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_residual_of_equal_laws_is_the_law(dtype):
    """[5] Nothing is missing: 0/0 must not become NaN."""
    p = laws(4, 9, dtype=dtype)
    assert torch.equal(residual(p, p), p)


def test_residual_where_rounding_leaves_no_mass_is_p():
    """[5] q equals p but for one token it overrates by the last digit: p - q has no positive entry at all."""
    p = f64([0.5, 0.3, 0.2])
    q = p.clone()
    q[1] = q[1].nextafter(f64(1.0))
    assert torch.equal(residual(p, q), p)
    # The refusal has probability 1e-16, and the largest uniform number reaches it.
    assert one_row([p.tolist()] * 2, [1], [q.tolist()], [HIGHEST], 0.6) == (0, 1)


def test_residual_of_the_smallest_numbers_is_still_a_law():
    """Missing mass far below rounding, down to the smallest float: scaled, never 0/0 and never infinite."""
    for gap in (1e-17, 1e-300, 5e-324):
        replacement = residual(f64([1.0, gap, 0.0]), f64([1.0, 0.0, 0.0]))
        assert replacement.tolist() == [0, 1, 0]


@pytest.mark.parametrize("which", [0, 1])
def test_nan_raises_and_is_never_taken_for_missing_mass(which):
    """[5]"""
    pair = [laws(3, 4), laws(3, 4, seed=1)]
    pair[which][1, 2] = math.nan
    with pytest.raises(ValueError, match=r"(target|draft)_probs holds NaN in row \(1,\)") as error:
        residual(*pair)
    assert ("target_probs", "draft_probs")[which] in str(error.value)


def test_residual_of_laws_of_different_widths_is_refused():
    """A width of 1 would broadcast without a word."""
    with pytest.raises(ValueError, match="draft_probs has shape"):
        residual(laws(2, 4), laws(2, 1))


# --- the leading run, the correction, the bonus


@pytest.mark.parametrize(
    ("mask", "accepted"),
    [([1, 0, 1, 1], 1), ([0, 1, 1, 1], 0), ([1, 1, 0, 1], 2), ([1, 1, 1, 0], 3), ([1, 1, 1, 1], 4), ([0, 0, 0, 0], 0)],
)
def test_only_the_leading_run_counts_and_the_next_token_comes_from_its_row(mask, accepted):
    """[7] p/q is 1/2 in every row: a uniform of 0 passes, 0.999999 does not. Row i corrects to i+1; row 4 is 5."""
    p = [[0.5 if token in (0, row + 1) else 0.0 for token in range(6)] for row in range(4)] + [one_hot(5)]
    uniform = [0.0 if passes else 0.999999 for passes in mask]
    assert one_row(p, [0] * 4, [one_hot(0)] * 4, uniform, 0.3) == (accepted, accepted + 1)


def test_every_token_after_a_refusal_is_thrown_away_even_if_it_matches():
    p = [one_hot(0), one_hot(1), one_hot(2), one_hot(3)]
    assert one_row(p, [5, 1, 2], None, [0.0] * 3, 0.0) == (0, 0)


def test_the_bonus_is_drawn_from_p_alone():
    """A residual there (of the last draft row, say) would forbid what the draft liked."""
    p = [[0.5, 0.5], [0.25, 0.75]]
    q = [[1.0, 0.0]]
    for point, token in ((0.0, 0), (0.2499, 0), (0.25, 1), (HIGHEST, 1)):
        assert one_row(p, [0], q, [0.0], point) == (1, token)


def test_the_correction_inverts_the_residual_of_its_own_row():
    """Second row of two is refused: the replacement follows C's residual [0, 0, 1/4, 3/4]."""
    p = [[0.25] * 4, PAIR_C[0], [0.25] * 4]
    q = [[0.25] * 4, PAIR_C[1]]
    for point, token in ((0.0, 2), (0.2499, 2), (0.2501, 3), (HIGHEST, 3)):
        assert one_row(p, [3, 0], q, [0.5, 0.5], point) == (1, token)


@pytest.mark.parametrize(("point", "accepted"), [(0.0, 1), (0.5999, 1), (0.6, 0), (0.6001, 0), (HIGHEST, 0)])
def test_acceptance_is_strictly_below_the_ratio(point, accepted):
    """B, draft token 1: p/q = 0.6."""
    assert one_row([PAIR_B[0]] * 2, [1], [PAIR_B[1]], [point], 0.0)[0] == accepted


def test_ratio_one_is_always_accepted():
    for token in (0, 2):
        assert one_row([PAIR_B[0]] * 2, [token], [PAIR_B[0]], [HIGHEST], 0.5)[0] == 1


def test_a_token_the_target_never_writes_is_refused_at_uniform_zero():
    """[6] p = 0: refused, and the correction is one of the tokens with mass."""
    p, q = [0.7, 0.3, 0.0], [0.2, 0.2, 0.6]
    for point in (0.0, 0.3, 0.9, HIGHEST):
        accepted, token = one_row([p, p], [2], [q], [0.0], point)
        assert accepted == 0
        assert token in (0, 1)
    assert wrong.accepts_impossible(
        f64([[p, p]]), torch.tensor([[2]]), f64([[q]]), f64([[0.0]]), f64([0.0])
    ).num_accepted


def test_first_draft_token_is_judged_by_the_first_row():
    """[8] Target writes x+1, drafter x+2: nothing passes and the text is greedy, whatever the uniforms."""
    for last in range(6):
        p = [one_hot((last + 1) % 6), one_hot((last + 3) % 6), one_hot((last + 4) % 6)]
        tokens = [(last + 2) % 6, (last + 3) % 6]
        for point in (0.0, HIGHEST):
            assert one_row(p, tokens, None, [point] * 2, point) == (0, (last + 1) % 6)


def test_p_and_q_are_not_symmetric():
    """[9] B, draft 0 with p/q = 2.5 passes at any uniform; swapped it would be refused at 0.5."""
    assert one_row([PAIR_B[0]] * 2, [0], [PAIR_B[1]], [0.5], 0.0)[0] == 1
    assert one_row([PAIR_B[1]] * 2, [0], [PAIR_B[0]], [0.5], 0.0)[0] == 0


def test_greedy_laws_leave_nothing_to_luck():
    """One-hot p and q: matching tokens pass, the first other one becomes the target's, for any uniforms."""
    p = [one_hot(token) for token in (3, 1, 4, 2)]
    for point in (0.0, 0.5, HIGHEST):
        assert one_row(p, [3, 1, 4], [one_hot(t) for t in (3, 1, 4)], [point] * 3, point) == (3, 2)
        assert one_row(p, [3, 1, 5], [one_hot(t) for t in (3, 1, 5)], [point] * 3, point) == (2, 4)
        assert one_row(p, [0, 1, 4], None, [point] * 3, point) == (0, 3)


# --- deterministic drafts


def test_a_missing_q_is_a_point_mass():
    """[26] B, draft 1: accepted with p = 0.3; the replacement follows [5/7, 0, 2/7]."""
    p = [PAIR_B[0]] * 2
    assert one_row(p, [1], None, [0.2999], 0.0)[0] == 1
    assert one_row(p, [1], None, [0.3], 0.0) == (0, 0)
    assert one_row(p, [1], None, [0.9], 5 / 7 - 1e-9) == (0, 0)
    assert one_row(p, [1], None, [0.9], 5 / 7 + 1e-9) == (0, 2)


def test_a_missing_q_equals_an_explicit_point_mass():
    tokens = torch.randint(0, 5, (40, 3), generator=torch.Generator().manual_seed(0))
    q = torch.nn.functional.one_hot(tokens, 5).double()
    p, accept, correct = laws(40, 4, 5), numbers(40, 3), numbers(40, seed=1)
    same(verify_chain(p, tokens, None, accept, correct), verify_chain(p, tokens, q, accept, correct))


def test_argmax_draft_must_not_be_reported_as_sampled():
    """[2] B: reported as drawn from q, token 1 passes with 0.6 where p gives it 0.3."""
    assert one_row([PAIR_B[0]] * 2, [1], [PAIR_B[1]], [0.5], 0.0)[0] == 1
    assert one_row([PAIR_B[0]] * 2, [1], None, [0.5], 0.0)[0] == 0


# --- short drafts and empty ones


def same(first: Verification, second: Verification):
    assert torch.equal(first.num_accepted, second.num_accepted)
    assert torch.equal(first.next_token, second.next_token)


def test_no_draft_is_a_plain_draw_from_the_target():
    p, correct = laws(50, 1, 7), numbers(50)
    empty = torch.zeros(50, 0, dtype=torch.int64)
    for q in (None, torch.zeros(50, 0, 7, dtype=torch.float64)):
        result = verify_chain(p, empty, q, numbers(50, 0), correct)
        assert torch.equal(result.num_accepted, torch.zeros(50, dtype=torch.int64))
        assert torch.equal(result.next_token, draw(p[:, 0], correct))


@pytest.mark.parametrize("with_q", [True, False])
def test_a_short_draft_in_a_batch_equals_the_short_draft_alone(with_q):
    """Padding columns hold other tokens, uniforms and laws; none of it may matter."""
    lengths = torch.arange(4).repeat(50)
    rows = len(lengths)
    p, q = laws(rows, 4, 5), laws(rows, 3, 5, seed=1)
    tokens = torch.randint(0, 5, (rows, 3), generator=torch.Generator().manual_seed(2))
    accept, correct = numbers(rows, 3), numbers(rows, seed=3)
    together = verify_chain(p, tokens, q if with_q else None, accept, correct, lengths)
    for row, length in enumerate(lengths.tolist()):
        one = slice(row, row + 1)
        alone = verify_chain(
            p[one, : length + 1],
            tokens[one, :length],
            q[one, :length] if with_q else None,
            accept[one, :length],
            correct[one],
        )
        assert int(together.num_accepted[row]) == int(alone.num_accepted[0]) <= length
        assert int(together.next_token[row]) == int(alone.next_token[0])


def test_a_fully_accepted_short_draft_gets_its_bonus_from_the_row_after_it():
    p = [one_hot(1), one_hot(2), one_hot(3), one_hot(4)]
    assert one_row(p, [1, 2, 3], None, [0.0] * 3, 0.5, num_drafted=2) == (2, 3)
    assert one_row(p, [1, 2, 3], None, [0.0] * 3, 0.5, num_drafted=0) == (0, 1)
    assert one_row(p, [1, 2, 3], None, [0.0] * 3, 0.5, num_drafted=3) == (3, 4)


def test_padding_after_a_short_draft_may_have_q_zero():
    q = [[0.5, 0.5], [0.0, 0.0]]
    assert one_row([[0.5, 0.5]] * 3, [0, 1], q, [0.0, 0.0], 0.9, num_drafted=1) == (1, 1)


def test_an_empty_batch_is_no_error():
    result = verify_chain(laws(0, 3, 4), torch.zeros(0, 2, dtype=torch.int64), laws(0, 2, 4), numbers(0, 2), numbers(0))
    assert result.num_accepted.shape == result.next_token.shape == (0,)


# --- rows, precision, inputs


def random_round(rows=64, width=3, vocab=6, dtype=torch.float64, seed=0):
    """Probabilities, a draft really drawn from q, and uniforms."""
    p, q = laws(rows, width + 1, vocab, seed=seed, dtype=dtype), laws(rows, width, vocab, seed=seed + 1, dtype=dtype)
    tokens = draw(q, numbers(rows, width, seed=seed + 2))
    return p, tokens, q, numbers(rows, width, seed=seed + 3), numbers(rows, seed=seed + 4)


def test_a_row_does_not_depend_on_its_batch():
    batch = random_round()
    together = verify_chain(*batch)
    for row in range(0, 64, 7):
        alone = verify_chain(*(part[row : row + 1] for part in batch))
        assert int(alone.num_accepted) == int(together.num_accepted[row])
        assert int(alone.next_token) == int(together.next_token[row])


@given(st.integers(0, 2**31), st.integers(0, 4), st.integers(2, 6), st.booleans())
@settings(max_examples=100, derandomize=True, deadline=None)
def test_verification_agrees_with_a_plain_loop(seed, width, vocab, soft):
    p, tokens, q, accept, correct = random_round(8, width, vocab, seed=seed % 10**6)
    result = verify_chain(p, tokens, q if soft else None, accept, correct)
    for row in range(8):
        kept = 0
        law = p[row, width]
        for column in range(width):
            token = int(tokens[row, column])
            q_row = q[row, column] if soft else torch.nn.functional.one_hot(tokens[row, column], vocab).double()
            if not float(accept[row, column]) < float(p[row, column, token] / q_row[token]):
                missing = (p[row, column] - q_row).clamp(min=0)
                law = missing / missing.sum()
                break
            kept += 1
        assert int(result.num_accepted[row]) == kept
        assert int(result.next_token[row]) == int(draw(law, correct[row]))


def test_float32_and_float64_agree_away_from_the_thresholds():
    p, tokens, q, accept, correct = random_round(2000)
    narrow = verify_chain(p.float(), tokens, q.float(), accept, correct)
    wide = verify_chain(p.float().double(), tokens, q.float().double(), accept, correct)
    same(narrow, wide)
    mixed = verify_chain(p.float(), tokens, q.float().double(), accept, correct)
    same(mixed, wide)


@pytest.mark.filterwarnings("error")
def test_strided_inputs_give_the_same_result_without_a_warning():
    batch = random_round()
    strided = [part.transpose(0, -1).contiguous().transpose(0, -1) for part in batch[:4]] + [batch[4]]
    assert not strided[0].is_contiguous()
    same(verify_chain(*strided), verify_chain(*batch))
    sliced = [torch.stack([part, part], dim=-1)[..., 0] for part in batch]
    same(verify_chain(*sliced), verify_chain(*batch))


@pytest.mark.parametrize("with_q", [True, False])
def test_inputs_are_not_changed(with_q):
    batch = list(random_round())
    if not with_q:
        batch[2] = None
    lengths = torch.randint(0, 4, (64,), generator=torch.Generator().manual_seed(0))
    before = [part if part is None else part.clone() for part in (*batch, lengths)]
    first = verify_chain(*batch, lengths)
    same(first, verify_chain(*batch, lengths))  # pure: the same again
    assert all(part is None or torch.equal(part, old) for part, old in zip((*batch, lengths), before, strict=True))
    p, q = laws(2, 5)
    copies = p.clone(), q.clone()
    residual(p, q), accept_probability(p, q)
    assert torch.equal(p, copies[0])
    assert torch.equal(q, copies[1])


def test_the_global_generator_is_not_used():
    batch, state = random_round(), torch.get_rng_state()
    verify_chain(*batch)
    assert torch.equal(torch.get_rng_state(), state)


def test_results_are_whole_numbers_in_range():
    result = verify_chain(*random_round(500))
    assert result.num_accepted.dtype == result.next_token.dtype == torch.int64
    assert set(result.num_accepted.tolist()) == {0, 1, 2, 3}
    assert 0 <= int(result.next_token.min()) <= int(result.next_token.max()) < 6


@pytest.mark.parametrize("how", [SamplingSettings(0.7, 3), SamplingSettings(1.2, None, 0.7), SamplingSettings(0)])
def test_the_emitted_token_always_has_probability_under_the_target(how):
    """Filters leave zeros in p and in q; neither an accepted nor a drawn token may fall on a zero of p."""
    logits = torch.randn(2, 3000, 2, 7, generator=torch.Generator().manual_seed(5))
    p, q = probabilities(logits[0], how), probabilities(logits[1, :, :1], how)
    for fixed in (None, 0.0, HIGHEST):
        accept = numbers(3000, 1) if fixed is None else torch.full((3000, 1), fixed, dtype=torch.float64)
        tokens = draw(q, numbers(3000, 1, seed=6))
        result = verify_chain(p, tokens, q, accept, accept[:, 0])
        first = torch.where(result.num_accepted == 1, tokens[:, 0], result.next_token)
        assert torch.all(p[torch.arange(3000), 0, first] > 0)
        assert torch.all(p[torch.arange(3000), result.num_accepted, result.next_token] > 0)


# --- refusals


def change(index, value):
    batch = list(random_round(2))
    batch[index] = value(batch[index])
    return lambda: verify_chain(*batch)


def put(where, value):
    def changed(tensor):
        tensor = tensor.clone()
        tensor[where] = value
        return tensor

    return changed


@pytest.mark.parametrize(
    ("call", "named"),
    [
        (change(0, lambda p: p[:, :3]), r"target_probs has shape \(2, 3, 6\); 2 rows of 3 drafts need \(2, 4, 6\)"),
        (change(0, lambda p: p[:1]), "target_probs has shape"),
        (change(2, lambda q: q[..., :5]), r"draft_probs has shape \(2, 3, 5\)"),
        (change(2, lambda q: q[..., :1]), "draft_probs has shape"),
        (change(2, lambda q: q[:, :2]), "draft_probs has shape"),
        (change(3, lambda u: u[:, :1]), r"accept_uniforms has shape \(2, 1\)"),
        (change(3, lambda u: u[:, 0]), "accept_uniforms has shape"),
        (change(4, lambda u: u[:, None]), "correct_uniforms has shape"),
        (change(4, lambda u: u[:1]), "correct_uniforms has shape"),
        (change(0, put((1, 2, 0), math.nan)), r"target_probs holds NaN in row \(1, 2\)"),
        (change(2, put((0, 1, 3), math.nan)), r"draft_probs holds NaN in row \(0, 1\)"),
        (change(2, put((1, 2), 0.0)), "draft_probs gives draft token 2 of row 1 probability 0.0"),
    ],
)
def test_bad_arguments_are_refused_by_name(call, named):
    """A shape that would broadcast is refused like any other."""
    with pytest.raises(ValueError, match=named):
        call()


@pytest.mark.parametrize(
    ("tokens", "num_drafted", "named"),
    [
        ([[0, 1, 6]], [3], "draft_tokens"),
        ([[0, -1, 2]], [3], "draft_tokens"),
        ([[0, 1, 2]], [4], "num_drafted"),  # without a word, the bonus would come from a residual
        ([[0, 1, 2]], [-1], "num_drafted"),
        ([[0, 1, 2]], [1, 1], "num_drafted"),
    ],
)
def test_ids_and_lengths_that_cannot_be_are_refused_by_name(tokens, num_drafted, named):
    p, _, q, accept, correct = random_round(1)
    with pytest.raises(ValueError, match=named):
        verify_chain(p, torch.tensor(tokens), q, accept, correct, torch.tensor(num_drafted))


def test_a_draft_its_own_law_forbids_is_refused():
    """[1] Drawn from the raw law, reported with the filtered one: a token outside the filter gives it away."""
    raw = f64([[0.4, 0.3, 0.2, 0.1]])
    filtered = probabilities(raw.log(), SamplingSettings(top_k=2))
    with pytest.raises(ValueError, match="cannot have been drawn from that law"):
        verify_chain(raw.expand(1, 2, 4), torch.tensor([[3]]), filtered[None], f64([[0.5]]), f64([0.5]))


def test_checks_can_be_left_to_the_caller():
    """`check=False` waits for nothing; the results are the same."""
    batch = random_round()
    same(verify_chain(*batch, check=False), verify_chain(*batch))


# --- statistics: the shipped sampler and the shipped rule together


def emitted(pair, rule=verify_chain, count=200_000):
    """Draft one token, judge it, emit one token: `count` rows with seeds of their own. Counts of each token."""
    p, q = (f64(law).expand(count, 1, -1) for law in pair)
    seeds, zeros = torch.arange(count), torch.zeros(count, dtype=torch.int64)
    points = [uniforms(seeds, zeros, zeros[:, None], purpose) for purpose in Purpose]
    tokens = draw(q, points[0])
    result = rule(p.expand(-1, 2, -1), tokens, q, points[1], points[2][:, 0])
    first = torch.where(result.num_accepted == 1, tokens[:, 0], result.next_token)
    return first.bincount(minlength=len(pair[0]))


@pytest.mark.parametrize("pair", [RED_BLUE, PAIR_B, PAIR_C], ids=["red/blue", "B", "C"])
def test_200_000_drafts_follow_the_target(pair):
    """And not the draft: the same test tells p from q by far."""
    counts = emitted(pair)
    assert stats.chisquare(counts, f64(pair[0]) * 200_000).pvalue > FALSE_ALARM
    assert stats.chisquare(counts, f64(pair[1]) * 200_000).pvalue < 1e-100


@pytest.mark.parametrize(
    ("rule", "pair", "law"),
    [
        (wrong.replacement_from_p, RED_BLUE, [0.65, 0.35]),
        (wrong.replacement_from_p, PAIR_B, [0.35, 0.39, 0.26]),
        (wrong.softmax_residual, PAIR_B, [0.32094, 0.38953, 0.28953]),
        (wrong.first_never_judged, PAIR_B, PAIR_B[1]),
        (wrong.one_uniform_for_draft_and_accept, PAIR_B, [0.6, 0.4, 0.0]),
    ],
)
def test_200_000_drafts_of_a_wrong_rule_follow_its_own_law(rule, pair, law):
    """The test above has teeth: the wrong rules land where the counted law says, and nowhere near p."""
    counts = emitted(pair, rule)
    possible = f64(law) > 0
    assert int(counts[~possible].sum()) == 0
    assert stats.chisquare(counts[possible], f64(law)[possible] * 200_000).pvalue > FALSE_ALARM
    assert stats.chisquare(counts, f64(pair[0]) * 200_000).pvalue < 1e-100


def test_one_number_for_draft_and_acceptance_is_caught():
    """[12] B becomes [.6, .4, 0] when the number that drew the draft is used again to judge it."""
    p, q = (f64(law).expand(100_000, 1, -1) for law in PAIR_B)
    points = numbers(100_000, 1)
    tokens = draw(q, points)
    result = verify_chain(p.expand(-1, 2, -1), tokens, q, points, numbers(100_000, seed=1))
    first = torch.where(result.num_accepted == 1, tokens[:, 0], result.next_token)
    counts = first.bincount(minlength=3)
    assert int(counts[2]) == 0
    assert stats.chisquare(counts[:2], f64([60_000, 40_000])).pvalue > FALSE_ALARM


def test_acceptance_happens_as_often_as_the_laws_overlap():
    """sum min(p, q): 0.7 for B. 200,000 rows: a standard error of 0.001."""
    p, q = (f64(law).expand(200_000, 1, -1) for law in PAIR_B)
    tokens = draw(q, numbers(200_000, 1))
    result = verify_chain(p.expand(-1, 2, -1), tokens, q, numbers(200_000, 1, seed=1), numbers(200_000, seed=2))
    assert stats.binomtest(int(result.num_accepted.sum()), 200_000, 0.7).pvalue > FALSE_ALARM
