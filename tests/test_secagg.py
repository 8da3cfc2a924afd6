"""Secure aggregation: sums bit for bit, servers that lie, clients that send garbage, and secrets that stay apart."""

from __future__ import annotations

import dataclasses
import itertools
import os
import random
from collections.abc import Callable

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from scipy.stats import chi2

from normec.errors import BadInput
from normec.secagg.client import Offer, State, offer, open_sum, view
from normec.secagg.masks import add_mask, agreed, public, seal, unseal
from normec.secagg.plan import Plan, digest
from normec.secagg.server import Attempt, GivenUp
from normec.secagg.shares import PRIME, Interpolation, split
from secagg_parties import MODEL, Cohort
from secagg_search import Rules, plan_of, smallest_sum


def vectors(cohort: Cohort, d: int = 100, most: int = 2**20) -> dict[str, np.ndarray]:
    return {name: np.random.default_rng(i).integers(-most, most, d) for i, name in enumerate(cohort.parties)}


def is_sum_of(total: np.ndarray, values: dict[str, np.ndarray], counted: set[str]) -> bool:
    return np.array_equal(total, sum(values[name] for name in counted))


# Shares and masks


def test_the_prime_is_one_of_fermats_kind_of_witnesses() -> None:
    assert all(pow(a, PRIME - 1, PRIME) == 1 for a in (2, 3, 5, 7, 11, 13)) and PRIME > 2**256


def test_any_threshold_of_shares_gives_the_secret_and_fewer_give_another() -> None:
    secret = os.urandom(32)
    shares = dict(enumerate(split(secret, 3, 5), start=1))
    assert {Interpolation(places).secret(shares) for places in itertools.combinations(shares, 3)} == {secret}
    assert all(Interpolation(places).secret(shares) != secret for places in itertools.combinations(shares, 2))


def test_shares_lie_on_one_line_worked_out_by_hand() -> None:
    # the line 5 + 3x: through its values at 1 and 2 its value at 0 is 5 and at 4 is 17
    shares = {1: (8).to_bytes(33, "big"), 2: (11).to_bytes(33, "big")}
    assert Interpolation((1, 2)).secret(shares) == (5).to_bytes(32, "big")
    assert Interpolation((1, 2)).value(shares, at=4) == 17


def test_the_largest_secrets_pass_and_no_secret_is_beyond_32_bytes() -> None:
    secret = b"\xff" * 32
    assert Interpolation((1, 3)).secret(dict(enumerate(split(secret, 2, 3), start=1))) == secret
    assert Interpolation((1,)).secret({1: (2**256 + 5).to_bytes(33, "big")}) is None


def test_a_mask_is_the_stream_of_aes_in_counter_mode() -> None:
    # AES-256 of the counters 0 and 1 under the key of zeros, by an independent implementation of the block alone
    from Crypto.Cipher import AES

    expected = AES.new(bytes(32), AES.MODE_ECB).encrypt(bytes(16) + (1).to_bytes(16, "big"))
    total = np.zeros(8, dtype=np.uint32)
    add_mask(total, bytes(32))
    assert total.tobytes() == expected


@pytest.mark.parametrize("d", [1, 2**14 - 1, 2**14, 2**14 + 1, 40_000])
def test_a_mask_that_is_taken_away_leaves_the_numbers(d: int) -> None:
    numbers = np.random.default_rng(d).integers(0, 2**32, d, dtype=np.uint32)
    total = numbers.copy()
    add_mask(total, b"k" * 32)
    assert (total != numbers).mean() > 0.99 or d == 1
    add_mask(total, b"k" * 32, subtract=True)
    assert np.array_equal(total, numbers)


def test_two_parties_agree_on_a_key_for_one_purpose() -> None:
    a, b = os.urandom(32), os.urandom(32)
    assert agreed(a, public(b), "mask", b"1") == agreed(b, public(a), "mask", b"1")
    assert len({agreed(a, public(b), purpose, bound) for purpose in ("mask", "box") for bound in (b"1", b"2")}) == 4


@pytest.mark.parametrize("key", [bytes(32), (1).to_bytes(32, "little"), bytes(31)])
def test_keys_that_agree_on_nothing_are_refused(key: bytes) -> None:
    with pytest.raises(ValueError, match=r"key|shared"):
        agreed(os.urandom(32), key, "mask")


def test_a_box_opens_for_its_key_and_its_attempt_alone() -> None:
    box = seal(b"k" * 32, b"text", b"attempt")
    assert unseal(b"k" * 32, box, b"attempt") == b"text"
    assert unseal(b"l" * 32, box, b"attempt") is unseal(b"k" * 32, box, b"other") is unseal(b"k" * 32, box[:-1], b"attempt") is None
    assert unseal(b"k" * 32, b"", b"attempt") is None


def test_parts_of_a_digest_do_not_run_together() -> None:
    assert len({digest("a", b"b", b"c"), digest("a", b"bc"), digest("a", b"", b"bc"), digest("ab", b"c"), digest("a", b"c", b"b")}) == 5


# The plan


@pytest.mark.parametrize(("n", "floor", "colluders", "missing"), [(3, 2, 0, 1), (10, 6, 1, 3), (20, 14, 2, 5), (100, 80, 10, 17)])
def test_dropouts_that_a_cohort_bears(n: int, floor: int, colluders: int, missing: int) -> None:
    plan = plan_of(n, floor - colluders, colluders)
    assert min(n - plan.threshold, plan.may_be_missing(n)) == missing


@pytest.mark.parametrize("n", range(2, 13))
def test_thresholds_keep_what_the_proof_needs(n: int) -> None:
    for colluders in range(n):
        for min_honest in range(1, n - colluders + 1):
            try:
                plan = plan_of(n, min_honest, colluders)
            except BadInput:
                assert colluders >= n - 1  # 2t > n + c has no t up to n
                continue
            assert 2 * plan.threshold > n + colluders and plan.threshold <= n
            for u in range(plan.fewest, n + 1):
                opened = plan.may_be_missing(u) * (n - colluders) // (plan.threshold - colluders)
                assert u - opened >= plan.floor


def test_a_cohort_that_is_too_small_is_no_attempt() -> None:
    with pytest.raises(BadInput, match=r"of 3 clients is less than min_honest \+ colluders = 4"):
        plan_of(3, 3, 1)


@pytest.mark.parametrize("change", ["attempt", "experiment", "terms", "min_honest", "members"])
def test_the_id_holds_all_that_a_plan_says(change: str) -> None:
    plan = Cohort(4).plan()
    other = {"attempt": "2", "experiment": "e", "terms": b"t", "min_honest": 2, "members": plan.members[:3]}[change]
    given = {each.name: getattr(plan, each.name) for each in dataclasses.fields(plan) if each.init}
    assert Plan(**{**given, change: other}).id != plan.id


# Sums


@pytest.mark.parametrize(("n", "min_honest", "colluders"), [(2, 2, 0), (3, 2, 0), (7, 4, 1), (50, 30, 3)])
@pytest.mark.parametrize("phase", ["no_offer", "no_upload", "no_shares", "none"])
def test_the_sum_that_opens_is_the_sum(n: int, min_honest: int, colluders: int, phase: str) -> None:
    cohort = Cohort(n, min_honest, colluders)
    plan, values = cohort.plan(), vectors(cohort, 20 if n == 50 else 100)
    most = {
        "none": 0,
        "no_offer": n - plan.fewest,
        "no_upload": min(n - plan.fewest, plan.may_be_missing(n)),
        "no_shares": n - plan.threshold,
    }
    absent = {} if phase == "none" else {phase: most[phase]}
    total, liars, counted = cohort.sum(values, **absent)
    assert is_sum_of(total, values, counted) and not liars
    assert len(counted) == n - (0 if phase == "no_shares" else most[phase])
    if absent:
        with pytest.raises(GivenUp):
            cohort.sum(values, **{phase: most[phase] + 1}, attempt="2")


def test_dropouts_in_every_phase_together() -> None:
    cohort = Cohort(9, 3, 0)
    values = vectors(cohort)
    total, liars, counted = cohort.sum(values, no_offer=1, no_upload=1, no_shares=1)
    assert is_sum_of(total, values, counted) and len(counted) == 7 and not liars


def test_sums_are_right_up_to_the_ends_of_32_bits() -> None:
    cohort = Cohort(3)
    ends = {"client-0": [2**31 - 1, -(2**31), 5], "client-1": [0, 0, -7], "client-2": [0, 0, 2]}
    total, _, _ = cohort.sum({name: np.array(each) for name, each in ends.items()})
    assert total.tolist() == [2**31 - 1, -(2**31), 0]
    over = {"client-0": [2**31 - 1], "client-1": [1], "client-2": [0]}
    total, _, _ = cohort.sum({name: np.array(each) for name, each in over.items()}, attempt="2")
    assert total.tolist() == [-(2**31)]  # the sum wraps around; no message shows


def test_an_upload_looks_like_chance() -> None:
    cohort = Cohort(3)
    attempt = Attempt(cohort.plan())
    cohort.offers(attempt)
    used, zeros = attempt.begin(MODEL), np.zeros(2**18, dtype=np.int64)
    uploads = [cohort.upload(name, attempt.plan, used, zeros)[0] for name in cohort.parties]
    for upload in uploads:  # a false alarm with a probability of 1e-9
        for part in (upload & 0xFF, upload >> 24):
            counts = np.bincount(part, minlength=256)
            assert ((counts - 1024) ** 2 / 1024).sum() < chi2.isf(1e-9, 255)
    assert all((a != b).any() for a, b in itertools.combinations(uploads, 2))


# Servers that lie


@dataclasses.dataclass
class Scene:
    """A cohort of seven, of which all have uploaded, before it answers for the survivors."""

    cohort: Cohort
    attempt: Attempt
    offers: dict[str, Offer]

    @classmethod
    def set(cls, uploads: bool = True) -> Scene:
        cohort = Cohort(7, 4, 1)
        attempt = Attempt(cohort.plan())
        cohort.offers(attempt)
        used = attempt.begin(MODEL)
        if uploads:
            for i, name in enumerate(used):
                attempt.receive_upload(name, *cohort.upload(name, attempt.plan, used, np.full(5, i)), 5)
        return cls(cohort, attempt, used)

    def view(self, offers: dict[str, Offer], model: bytes = MODEL, plan: Plan | None = None, of: str = "client-0") -> None:
        view(self.cohort.parties[of], self.cohort.states[of], (plan or self.attempt.plan).id, model, offers)


def without(table: dict, *names: str) -> dict:
    return {name: value for name, value in table.items() if name not in names}


OPENINGS: dict[str, tuple[Callable[[dict[str, bytes]], dict[str, bytes]], str]] = {
    "a sum of few": (lambda all_: without(all_, "client-4", "client-5", "client-6"), "a sum of 4 uploads is of fewer than the 5"),
    "too many missing": (lambda all_: without(all_, "client-5", "client-6"), "2 uploads are missing of 7 offers, and at most 1 may be"),
    "this client called missing": (lambda all_: without(all_, "client-0"), "this client has sent its upload, and is not counted"),
    "a stranger counted": (lambda all_: {**all_, "nobody": b""}, "client 'nobody' is counted, and this client has seen no offer of it"),
    "no upload of one counted": (lambda all_: {**all_, "client-3": bytes(64)}, "client 'client-3' has not signed the model and the offers"),
}


@pytest.mark.parametrize("lie", OPENINGS)
def test_survivors_that_a_client_does_not_open_for(lie: str) -> None:
    scene = Scene.set()
    change, sentence = OPENINGS[lie]
    with pytest.raises(BadInput, match=sentence):
        scene.cohort.opens("client-0", scene.attempt, change(scene.attempt.counted()))


def test_a_client_opens_once_also_after_a_restart() -> None:
    scene = Scene.set()
    scene.cohort.opens("client-0", scene.attempt)
    scene.cohort.states["client-0"] = State.read(scene.cohort.states["client-0"].text())
    with pytest.raises(BadInput, match="stands at 'opened' here, and not at 'masked'"):
        scene.cohort.opens("client-0", scene.attempt, without(scene.attempt.counted(), "client-6"))


def test_seed_and_key_of_one_client_are_never_given_together() -> None:
    scene = Scene.set()
    counted = without(scene.attempt.counted(), "client-6")
    given = scene.cohort.opens("client-0", scene.attempt, counted)
    both = [unseal_of(scene, name) for name in scene.offers]
    assert [share == seed for share, (_, seed) in zip(given, both, strict=True)] == [name != "client-6" for name in scene.offers]
    assert [share == key for share, (key, _) in zip(given, both, strict=True)] == [name == "client-6" for name in scene.offers]


def unseal_of(scene: Scene, sender: str) -> tuple[bytes, bytes]:
    from normec.secagg.client import box_key

    party = scene.cohort.parties["client-0"]
    held = unseal(box_key(party, scene.attempt.plan, sender, sender), scene.attempt.boxes[sender]["client-0"], scene.attempt.plan.id)
    return held[:33], held[33:]


def test_clients_with_other_models_are_not_counted_together() -> None:
    scene = Scene.set(uploads=False)
    for name in scene.offers:
        model = b"another" if name == "client-5" else MODEL
        masked, signature = scene.cohort.upload(name, scene.attempt.plan, scene.offers, np.zeros(5), model)
        if name != "client-5":
            scene.attempt.receive_upload(name, masked, signature, 5)
        else:
            with pytest.raises(BadInput, match="client 'client-5' has trained from another model, or with other offers"):
                scene.attempt.receive_upload(name, masked, signature, 5)
            stray = signature
    with pytest.raises(BadInput, match="client 'client-5' has not signed the model and the offers"):
        scene.cohort.opens("client-0", scene.attempt, {**scene.attempt.signatures, "client-5": stray})


def test_other_offers_for_a_victim_end_in_a_round_that_does_not_open() -> None:
    scene = Scene.set(uploads=False)
    fewer = without(scene.offers, "client-6")
    alone = scene.cohort.upload("client-0", scene.attempt.plan, fewer, np.zeros(5))[1]
    for name in without(scene.offers, "client-0"):
        scene.attempt.receive_upload(name, *scene.cohort.upload(name, scene.attempt.plan, scene.offers, np.zeros(5)), 5)
    with pytest.raises(BadInput, match="client 'client-0' has not signed"):
        scene.cohort.opens("client-1", scene.attempt, {**scene.attempt.signatures, "client-0": alone})
    with pytest.raises(BadInput, match="client 'client-1' has not signed"):
        scene.cohort.opens("client-0", scene.attempt, {**without(scene.attempt.signatures, "client-6"), "client-0": alone})


@pytest.mark.parametrize(
    "lie", ["swapped mask key", "own offer changed", "a stranger's offer", "few offers", "another attempt", "replayed"]
)
def test_offers_that_a_client_does_not_train_with(lie: str) -> None:
    scene = Scene.set(uploads=lie == "replayed")
    offers, plan = dict(scene.offers), None
    if lie == "swapped mask key":
        offers["client-3"] = dataclasses.replace(offers["client-3"], mask_key=public(b"s" * 32))
    elif lie == "own offer changed":
        offers["client-0"] = offers["client-1"]
    elif lie == "a stranger's offer":
        offers["nobody"] = offers["client-1"]
    elif lie == "few offers":
        offers = dict(list(offers.items())[:4])
    elif lie == "another attempt":
        plan = scene.cohort.plan("2")
    sentence = {
        "swapped mask key": "the offer of client 'client-3' is not signed by its identity",
        "own offer changed": "the offer of this client is not the one that it has made",
        "a stranger's offer": "client 'nobody' has an offer and is not in the cohort",
        "few offers": "4 offers are fewer than the 5 that protect this client",
        "another attempt": "this client has made no offer for that attempt",
        "replayed": "stands at 'masked' here, and not at 'offered'",
    }[lie]
    with pytest.raises(BadInput, match=sentence):
        scene.view(offers, plan=plan)


@pytest.mark.parametrize("lie", ["stale attempt", "a stranger", "swapped identity", "swapped box key", "without this client"])
def test_cohorts_that_a_client_makes_no_offer_to(lie: str) -> None:
    cohort = Cohort(4)
    members, signatures, party, last = list(cohort.members), dict(cohort.signatures), cohort.parties["client-0"], None
    thief = Ed25519PrivateKey.generate()
    if lie == "stale attempt":
        last, _, _ = offer(party, cohort.plan("2"), signatures, None)
    elif lie == "a stranger":
        members.append(dataclasses.replace(members[3], name="nobody"))
    elif lie == "swapped identity":
        members[2] = dataclasses.replace(members[2], identity=thief.public_key().public_bytes_raw())
    elif lie == "swapped box key":
        members[2] = dataclasses.replace(members[2], box_key=public(b"s" * 32))
    else:
        members = members[1:]
    sentence = {
        "stale attempt": "attempt 1 is not newer than 2, which this client has seen",
        "a stranger": "client 'nobody' of the cohort is not among them",
        "swapped identity": "client 'client-2' shows another identity key than the one that is pinned",
        "swapped box key": "the box key of client 'client-2' is not signed by its identity",
        "without this client": "does not hold this client, 'client-0'",
    }[lie]
    plan = Plan(experiment="experiment", attempt="1", members=tuple(members), terms=b"terms", min_honest=1, colluders=0)
    with pytest.raises(BadInput, match=sentence):
        offer(party, plan, signatures, last)


@pytest.mark.parametrize(("n", "min_honest", "colluders"), [(3, 2, 0), (5, 2, 0), (5, 3, 0), (6, 2, 1), (6, 3, 1), (6, 4, 0), (6, 2, 2)])
def test_no_lying_server_opens_a_sum_of_few(n: int, min_honest: int, colluders: int) -> None:
    assert smallest_sum(plan_of(n, min_honest, colluders), 3000, Rules(), random.Random(n)) >= min_honest


@pytest.mark.long
@pytest.mark.parametrize("n", range(2, 10))
def test_no_lying_server_opens_a_sum_of_few_in_a_long_search(n: int) -> None:
    for colluders in range(3):
        for min_honest in range(1, n - colluders + 1):
            try:
                plan = plan_of(n, min_honest, colluders)
            except BadInput:
                continue
            assert smallest_sum(plan, 20_000, Rules(), random.Random(n)) >= min_honest


def test_the_search_finds_a_break_without_the_rule_on_missing_uploads() -> None:
    assert smallest_sum(plan_of(5, 3, 0), 3000, Rules(missing=False), random.Random(5)) < 3


def test_the_search_finds_a_break_without_signatures_of_what_was_seen() -> None:
    assert smallest_sum(plan_of(5, 2, 0), 3000, Rules(contexts=False), random.Random(5)) < 2


# Clients that send garbage


@pytest.mark.parametrize("liars", [("client-1",), ("client-5",), ("client-5", "client-6"), ("client-0", "client-3")])
def test_wrong_shares_harm_nothing_and_are_named_where_they_were_used(liars: tuple[str, ...]) -> None:
    scene = Scene.set()
    for name in scene.offers:
        shares = scene.cohort.opens(name, scene.attempt)
        scene.attempt.receive_shares(name, [bytes(33)] * 7 if name in liars else shares)
    total, named = scene.attempt.total()
    assert total.tolist() == [21] * 5 and named == [each for each in liars if liars != ("client-1",)]  # tried without the first two


def test_a_round_of_too_many_wrong_shares_is_given_up() -> None:
    scene = Scene.set()
    for name in scene.offers:
        shares = scene.cohort.opens(name, scene.attempt)
        scene.attempt.receive_shares(name, shares if name in ("client-0", "client-1", "client-2", "client-3") else [os.urandom(33)] * 7)
    with pytest.raises(GivenUp, match="cannot be made again"):
        scene.attempt.total()


def test_boxes_that_do_not_open_leave_the_others_unharmed() -> None:
    cohort = Cohort(7, 4, 1)
    attempt = Attempt(cohort.plan())
    cohort.offers(attempt)
    attempt.boxes["client-2"] = {**attempt.boxes["client-2"], "client-3": b"garbage", "client-4": b""}
    used = attempt.begin(MODEL)
    for i, name in enumerate(used):
        attempt.receive_upload(name, *cohort.upload(name, attempt.plan, used, np.full(5, i)), 5)
    answers = {name: cohort.opens(name, attempt) for name in used}
    assert [name for name, shares in answers.items() if b"" in shares] == ["client-3", "client-4"]
    for name, shares in answers.items():
        attempt.receive_shares(name, shares)
    assert attempt.total()[0].tolist() == [21] * 5


@pytest.mark.parametrize("garbage", ["type", "shape", "signature", "stranger"])
def test_uploads_that_cannot_be_added_are_refused(garbage: str) -> None:
    scene = Scene.set(uploads=False)
    masked, signature = scene.cohort.upload("client-0", scene.attempt.plan, scene.offers, np.zeros(5))
    given = {
        "type": ("client-0", masked.astype(np.float32), signature, "of type float32"),
        "shape": ("client-0", masked[:4], signature, r"shape \(4,\)"),
        "signature": ("client-0", masked, bytes(64), "trained from another model"),
        "stranger": ("nobody", masked, signature, "whose offer is not used"),
    }[garbage]
    with pytest.raises(BadInput, match=given[3]):
        scene.attempt.receive_upload(*given[:3], 5)


@pytest.mark.parametrize("garbage", ["low order", "unsigned", "boxes", "stranger"])
def test_offers_that_the_server_does_not_forward(garbage: str) -> None:
    cohort = Cohort(4)
    attempt, party = Attempt(cohort.plan()), cohort.parties["client-0"]
    _, made, boxes = offer(party, attempt.plan, cohort.signatures, None)
    name, sentence = (
        "client-0",
        {"low order": "hides nothing", "unsigned": "has not signed", "boxes": "a box for each", "stranger": "not in"},
    )
    if garbage == "low order":
        from normec.secagg.client import offer_text

        made = Offer(bytes(32), made.commitment, party.identity.sign(offer_text(attempt.plan, name, bytes(32), made.commitment)))
    elif garbage == "unsigned":
        made = dataclasses.replace(made, commitment=bytes(32))
    elif garbage == "boxes":
        del boxes["client-3"]
    else:
        name = "nobody"
    with pytest.raises(BadInput, match=sentence[garbage]):
        attempt.receive_offer(name, made, boxes)


def test_shares_of_another_number_are_refused() -> None:
    scene = Scene.set()
    with pytest.raises(BadInput, match="has not answered with one share for each offer"):
        scene.attempt.receive_shares("client-0", [bytes(33)] * 6)


# What is kept


def test_a_state_survives_its_file_at_every_stage() -> None:
    scene = Scene.set(uploads=False)
    for step in ("offered", "masked", "opened"):
        for name in scene.offers:
            state = scene.cohort.states[name]
            assert state.stage == step and State.read(state.text()) == state
            scene.cohort.states[name] = State.read(state.text())
            if step == "offered":
                scene.attempt.receive_upload(name, *scene.cohort.upload(name, scene.attempt.plan, scene.offers, np.full(5, 1)), 5)
        if step == "masked":
            for name in scene.offers:
                scene.attempt.receive_shares(name, scene.cohort.opens(name, scene.attempt))
    assert scene.attempt.total()[0].tolist() == [7] * 5


def test_secrets_are_dropped_with_the_upload() -> None:
    scene = Scene.set()
    state = scene.cohort.states["client-0"]
    assert state.mask_key == state.seed == b""


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"plan": 1}', '{"plan": {"members": []}}'])
def test_a_damaged_state_is_refused(text: str) -> None:
    with pytest.raises(BadInput, match="state of the secure aggregation is damaged"):
        State.read(text)


def test_two_uploads_of_one_attempt_never_share_a_mask() -> None:
    scene = Scene.set(uploads=False)
    kept = State.read(scene.cohort.states["client-0"].text())
    scene.cohort.upload("client-0", scene.attempt.plan, scene.offers, np.zeros(5))
    with pytest.raises(BadInput, match="stands at 'masked'"):
        scene.cohort.upload("client-0", scene.attempt.plan, scene.offers, np.ones(5))
    again, _, _ = offer(scene.cohort.parties["client-0"], scene.cohort.plan("2"), scene.cohort.signatures, kept)
    assert again.seed != kept.seed and again.mask_key != kept.mask_key


def test_a_client_that_offered_nothing_opens_nothing() -> None:
    scene = Scene.set()
    with pytest.raises(BadInput, match="has made no offer for that attempt"):
        open_sum(scene.cohort.parties["client-0"], None, scene.attempt.plan.id, {}, {})
