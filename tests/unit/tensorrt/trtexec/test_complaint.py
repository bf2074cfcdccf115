from halfwise.graph.unchecked import Place
from halfwise.records import NodeName
from halfwise.tensorrt.trtexec.complaint import Complaint, text_of


def test_the_record():
    complaint = Complaint("r", "error", "m", "f.", Place(NodeName("n"), "Relu", 3))
    finding = complaint.finding()
    assert (finding.rule, finding.node, finding.op, finding.place) == ("r", "n", "Relu", 3)
    assert Complaint("r", "info", "m", "f.").finding().node is None


def test_versions():
    assert text_of((10, 3)) == "10.3"
