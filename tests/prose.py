"""Text as a tool might return it: varied, since repeated letters are compressed to nothing."""

from __future__ import annotations

import random

_WORDS = """
ability account across address advance afternoon agreement almost amount annual answer appears
around article audience average balance before behind better between board branch bridge broad
budget building business capital careful carried central century certain chain chapter charge
choice circle claim climate close coast column common company compare concern condition consider
contract control copper corner council country course court cover credit crossing current customer
daily damage debate decade decline degree delay deliver demand depend depth design detail differ
direct discuss district doubt draft early earnings eastern economy effect either electric employ
engine enough entire equal estimate evening event evidence exactly example exchange expect expense
export factor failure fairly figure final finance follow forecast foreign forward freight fuel
further garden gather general glass gradual grain growth harbour heavy height history holding
however import improve income increase industry inland insurance interest island journey keeping
labour language later leading length letter level likely limit machine manner margin market matter
measure meeting member method middle mineral modest moment month morning narrow nearly northern
notice number object obtain office often opinion option order output outside owner paper partly
pattern people period permit planned policy port position power present pressure price process
product profit project promise proper public purpose quality quarter question railway rainfall
rather reason recent record reduce region remain repair reply report request result revenue river
rough sample season second section security service settle several shallow share sheet shipping
short silver simple slight soft source southern spring stable station steady steel storage strong
subject summer supply surface survey sustain system tariff tenant terminal therefore timber total
toward trade traffic transfer treaty trend trust turnover twelve under union until upper usual
valley value various vessel village volume weather weight western wheat whole winter within wool
yield
""".split()  # noqa: SIM905 - as text it is 30 lines, as a list 200


def prose(seed: object, size: int) -> str:
    """About `size` bytes of sentences, the same for the same seed."""
    chosen = random.Random(str(seed))
    sentences: list[str] = []
    length = 0
    while length < size:
        words = chosen.choices(_WORDS, k=chosen.randint(6, 18))
        if chosen.random() < 0.4:
            words.insert(chosen.randrange(len(words)), f"{chosen.randint(1, 99_999):,}")
        sentence = " ".join(words).capitalize() + ". "
        sentences.append(sentence)
        length += len(sentence)
    return "".join(sentences)[:size]
