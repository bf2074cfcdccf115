"""Frames come out whole, whatever stands between them and however the bytes are cut."""

from hypothesis import given
from hypothesis import strategies as st

from halfwise.backends.tensorrt.worker import MAGIC, Unpacker, pack

# Parts of the marker, and whole markers with a nonsense header behind them.
_noise = st.lists(
    st.one_of(
        st.binary(max_size=40),
        st.integers(1, len(MAGIC) - 1).map(lambda n: MAGIC[:n]),
        st.just(MAGIC + b"\xff" * 12),
        st.just(MAGIC + b"\x00\x00\x00\x02" + b"\x00" * 8 + b"[]"),
        st.just(MAGIC + b"\x00\x00\x00\x02" + b"\x00" * 8 + b"{!"),
    ),
    max_size=4,
).map(b"".join)
_headers = st.dictionaries(st.text(max_size=5), st.integers() | st.text(max_size=9), max_size=3)
_payloads = st.binary(max_size=60) | st.just(MAGIC * 2)


@given(st.lists(st.tuples(_noise, _headers, _payloads), max_size=5), st.data())
def test_any_noise_and_any_chunks(frames, data):
    stream = b"".join(noise + pack(header, payload) for noise, header, payload in frames)
    unpacker, found, noise = Unpacker(), [], b""
    while stream:
        count = data.draw(st.integers(1, len(stream)))
        for header, payload, between in unpacker.feed(stream[:count]):
            if header is None:
                noise += between
            else:
                found.append((header, payload))
        stream = stream[count:]
    assert found == [(header, payload) for _, header, payload in frames]
    assert noise == b"".join(noise for noise, _, _ in frames)


@given(st.binary())
def test_noise_alone_is_never_a_frame(data):
    unpacker = Unpacker()
    assert all(header is None for header, _, _ in unpacker.feed(data.replace(MAGIC, b"")))
