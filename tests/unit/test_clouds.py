"""What the metadata services of the clouds say, and which cloud a machine is in."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from regrow.infra.ray.metadata import (
    AwsMetadata,
    AzureMetadata,
    Cloud,
    GcpMetadata,
    Unanswered,
    cloud,
)
from regrow.tasks.errors import UserError
from tests.unit.metadata_service import ACTION, INSTANCE_ACTION, TOKEN, Service, serving

REBALANCE = "/latest/meta-data/events/recommendations/rebalance"
PREEMPTED = "/computeMetadata/v1/instance/preempted"
MAINTENANCE = "/computeMetadata/v1/instance/maintenance-event"
NAME = "/metadata/instance/compute/name?api-version=2021-02-01&format=text"
EVENTS = "/metadata/scheduledevents?api-version=2020-07-01"

PREEMPT = (
    '{"DocumentIncarnation": 2, "Events": [{"EventId": "602d9444-d2cd-49c7-8624-8643e7171297", "EventType": "%s",'
    ' "ResourceType": "VirtualMachine", "Resources": ["%s"], "EventStatus": "Scheduled",'
    ' "NotBefore": "Mon, 11 Apr 2022 22:26:58 GMT", "Description": "", "EventSource": "Platform", "DurationInSeconds": -1}]}'
)


@pytest.fixture
def service(monkeypatch: pytest.MonkeyPatch) -> Iterator[Service]:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")  # which must not be asked
    service = Service()
    with serving(service):
        yield service


@pytest.fixture
def aws(service: Service) -> AwsMetadata:
    return AwsMetadata(f"http://{service.address}")


@pytest.fixture
def gcp(service: Service) -> GcpMetadata:
    service.required, service.refusal = {"metadata-flavor": "Google"}, 403
    service.answers = {PREEMPTED: (200, "FALSE"), MAINTENANCE: (200, "NONE")}
    return GcpMetadata(service.address)


@pytest.fixture
def azure(service: Service) -> AzureMetadata:
    service.required = {"metadata": "true"}
    service.answers = {
        NAME: (200, "FrontEnd_IN_0"),
        EVENTS: (200, '{"DocumentIncarnation": 1, "Events": []}'),
    }
    return AzureMetadata(f"http://{service.address}")


# ---- what the clouds say


def test_aws_says_nothing_until_the_instance_is_to_be_interrupted(
    service: Service, aws: AwsMetadata
) -> None:
    assert aws.poll() is None
    service.answers[INSTANCE_ACTION] = 200, ACTION
    assert aws.poll() == "AWS takes the spot instance back (terminate at 2017-09-18T08:22:00Z)"
    assert service.asked == [f"PUT {TOKEN}", f"GET {INSTANCE_ACTION}", f"GET {INSTANCE_ACTION}"]


def test_an_expired_token_is_replaced_within_the_same_question(
    service: Service, aws: AwsMetadata
) -> None:
    assert aws.poll() is None
    service.tokens.clear()
    service.answers[INSTANCE_ACTION] = 200, ACTION
    assert aws.poll() is not None
    assert service.asked[2:] == [f"GET {INSTANCE_ACTION}", f"PUT {TOKEN}", f"GET {INSTANCE_ACTION}"]


def test_an_aws_service_that_grants_no_tokens_is_asked_without(
    service: Service, aws: AwsMetadata
) -> None:
    service.answers = {TOKEN: (405, ""), INSTANCE_ACTION: (200, ACTION)}
    assert aws.poll() is not None


def test_a_token_that_is_never_accepted_does_not_go_in_circles(
    service: Service, aws: AwsMetadata
) -> None:
    service.answers = {TOKEN: (200, "useless")}
    service.answers[INSTANCE_ACTION] = 401, ""
    with pytest.raises(Unanswered, match="401"):
        aws.poll()
    assert len(service.asked) == 4


def test_the_rebalance_recommendation_counts_only_where_wanted(
    service: Service, aws: AwsMetadata
) -> None:
    service.answers[REBALANCE] = 200, '{"noticeTime": "2020-10-26T15:18:45Z"}'
    assert aws.poll() is None
    why = AwsMetadata(f"http://{service.address}", rebalance=True).poll()
    assert why == "AWS recommends to leave the spot instance (noticed at 2020-10-26T15:18:45Z)"


def test_gcp_says_so_when_it_preempts_or_must_stop_the_instance(
    service: Service, gcp: GcpMetadata
) -> None:
    assert gcp.poll() is None
    service.answers[MAINTENANCE] = 200, "MIGRATE_ON_HOST_MAINTENANCE"
    assert gcp.poll() is None
    service.answers[MAINTENANCE] = 200, "TERMINATE_ON_HOST_MAINTENANCE"
    assert gcp.poll() == "GCP terminates the instance for maintenance of its host"
    service.answers[PREEMPTED] = 200, "TRUE"
    assert gcp.poll() == "GCP preempts the instance"


def test_azure_speaks_of_many_machines_and_only_ours_counts(
    service: Service, azure: AzureMetadata
) -> None:
    assert azure.poll() is None
    service.answers[EVENTS] = 200, PREEMPT % ("Preempt", "BackEnd_IN_0")
    assert azure.poll() is None
    service.answers[EVENTS] = 200, PREEMPT % ("Freeze", "frontend_in_0")
    assert azure.poll() is None
    service.answers[EVENTS] = 200, PREEMPT % ("Preempt", "frontend_in_0")
    assert (
        azure.poll()
        == "Azure takes the machine away (Preempt, not before Mon, 11 Apr 2022 22:26:58 GMT)"
    )
    assert not any(asked.startswith("POST") for asked in service.asked)


@pytest.mark.parametrize(
    "body", ["", "<html>", "[]", "null", '"TRUE"', '{"action": 7}', '{"Events": 3}', "\x00" * 100]
)
@pytest.mark.parametrize("which", ["aws", "gcp", "azure"])
def test_what_no_cloud_would_say_is_no_notice(
    service: Service, which: str, body: str, request: pytest.FixtureRequest
) -> None:
    source: Cloud = request.getfixturevalue(which)
    service.answers = dict.fromkeys((INSTANCE_ACTION, PREEMPTED, EVENTS), (200, body)) | {
        NAME: (200, "vm")
    }
    with pytest.raises(Unanswered):
        source.poll()


@pytest.mark.parametrize("which", ["aws", "gcp", "azure"])
def test_a_service_that_is_slow_or_fails_is_given_up_for_now(
    service: Service, which: str, request: pytest.FixtureRequest
) -> None:
    source: Cloud = request.getfixturevalue(which)
    service.answers = dict.fromkeys((INSTANCE_ACTION, PREEMPTED, EVENTS, NAME), (503, ""))
    with pytest.raises(Unanswered, match="503"):
        source.poll()
    service.delay.clear()
    with pytest.raises(Unanswered, match="timed out"):
        source.poll()


def test_nobody_there_is_no_answer() -> None:
    with pytest.raises(Unanswered, match="refused"):
        AwsMetadata("http://127.0.0.1:1").poll()
    with pytest.raises(Unanswered):
        AwsMetadata("no address").poll()


# ---- which cloud


@pytest.mark.parametrize(
    ("file", "says", "kind"),
    [
        ("sys_vendor", "Amazon EC2", AwsMetadata),
        ("bios_version", "4.11.amazon", AwsMetadata),
        ("product_name", "Google Compute Engine", GcpMetadata),
        ("chassis_asset_tag", "7783-7084-3265-9085-8269-3286-77", AzureMetadata),
        ("sys_vendor", "Microsoft Corporation", type(None)),
        ("sys_vendor", "QEMU", type(None)),
    ],
)
def test_the_cloud_is_known_by_the_machines_firmware(
    tmp_path: Path, file: str, says: str, kind: type
) -> None:
    (tmp_path / file).write_text(f"{says}\n")
    assert isinstance(cloud({}, tmp_path), kind)
    assert isinstance(cloud({"REGROW_CLOUD": "auto"}, tmp_path), kind)
    assert cloud({"REGROW_CLOUD": "none"}, tmp_path) is None
    assert isinstance(cloud({"REGROW_CLOUD": "GCP"}, tmp_path), GcpMetadata)


def test_aws_can_be_switched_off_by_its_own_variable() -> None:
    assert cloud({"REGROW_CLOUD": "aws", "AWS_EC2_METADATA_DISABLED": "true"}) is None


def test_an_unknown_cloud_is_told_to_the_user() -> None:
    with pytest.raises(
        UserError,
        match="REGROW_CLOUD='aw' is unknown: set it to one of auto, aws, gcp, azure, none, or unset it",
    ):
        cloud({"REGROW_CLOUD": "aw"})
