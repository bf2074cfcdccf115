from halfwise.graph.model import network_from_proto
from halfwise.graph.modern.gelu import read_gelus
from tests.spellings import proto


def test_both_forms():
    for name, approximate in (("torch_gelu", "none"), ("torch_gelu_tanh", "tanh")):
        (found,) = read_gelus(network_from_proto(proto(name)))
        assert (found.x.name, found.approximate) == ("x", approximate)
        assert found.output.is_graph_output()


def test_other_activations():
    assert not list(read_gelus(network_from_proto(proto("quick_gelu"))))
