"""Notifying people: Prefect's blocks and the automation for `notify:` of a specification.

An experiment has one automation; so has a schedule, for all of its experiments. It reacts to our
events (`events.py`) and sends their text. Addresses are read from environment variables of the
process that runs the session. Prefect stores them encrypted.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Mapping
from typing import Any
from uuid import UUID

from prefect.client.orchestration import SyncPrefectClient
from prefect.events import AutomationCore, EventTrigger, Posture, SendNotification
from prefect.exceptions import ObjectNotFound
from prefect.settings import PREFECT_UI_URL, get_current_settings
from pydantic import SecretStr

from regrow.infra.prefect.home import has_station, read_record
from regrow.infra.state.places import Places
from regrow.search.recurrence import name_prefix
from regrow.search.spec import Spec
from regrow.search.spec.station import Notify

SUBJECT = "{{ event.payload.experiment }}: {{ event.payload.text|truncate(80) }}"
EVENTS: Mapping[str, str] = {
    **{
        name: f"regrow.experiment.{name}"
        for name in ("started", "finished", "stopped", "interrupted", "failed", "budget")
    },
    "best": "regrow.trial.best",
    "stalled": "regrow.trial.stalled",
}


def ensure(
    client: SyncPrefectClient, spec: Spec, deployment_id: UUID | None, places: Places
) -> list[str]:
    """Set Prefect up to notify whom the specification names, or no one. Returns lines for the user
    about what is not possible.

    Changes nothing that is set up already. Never raises: training is more important than a message.
    """
    # a station's server outlives the session, and so does the user's
    embedded = read_record(places.prefect_home).get("api_url")
    if get_current_settings().api.url == embedded and not has_station(places.prefect_home):
        needed = "notify needs a station (`regrow up`) or a Prefect server of your own"
        return [f"{needed}; no message will be sent"] if spec.notify is not None else []
    try:
        owner = spec.name if deployment_id is None else client.read_deployment(deployment_id).name
        if spec.notify is None:
            forget(client, owner)
            return []
        blocks, remarks = _blocks(client, spec.notify, owner)
        scheduled = deployment_id is not None
        wanted = automation(_name(owner), owner, spec.notify, blocks, scheduled=scheduled)
        known = client.read_automations_by_name(wanted.name)
        for one in known[1 if wanted.actions else 0 :]:  # all of them if no address is usable
            client.delete_automation(one.id)
        if wanted.actions and not known:
            client.create_automation(wanted)
        elif wanted.actions and _form(known[0]) != _form(wanted):
            client.update_automation(known[0].id, wanted)
    except Exception as error:  # noqa: BLE001 - Prefect and its blocks raise many types
        return [f"notify cannot be set up, messages may be missing: {error}"]
    return remarks


def forget(client: SyncPrefectClient, owner: str) -> None:
    """Stop notifications about an experiment or schedule that was removed."""
    for known in client.read_automations_by_name(_name(owner)):
        client.delete_automation(known.id)


def _name(owner: str) -> str:
    return f"regrow: tell of {owner}"


def automation(
    name: str, owner: str, notify: Notify, blocks: list[UUID], *, scheduled: bool
) -> AutomationCore:
    """Return the automation that sends the text of `owner`'s events through the blocks."""
    resources = [f"regrow.experiment.{owner}", f"regrow.trial.{owner}.*"]
    if scheduled:  # names of its experiments are its name and a time
        resources += [
            f"regrow.experiment.{name_prefix(owner)}-20*",
            f"regrow.trial.{name_prefix(owner)}-20*",
        ]
    body = "{{ event.payload.text }}"
    if page := PREFECT_UI_URL.value():
        body += f"\n{page.rstrip('/')}/runs/flow-run/{{{{ event.payload.flow_run }}}}"
    trigger = EventTrigger.model_validate(
        {
            "expect": {EVENTS[event] for event in notify.events},
            "match": {"prefect.resource.id": resources},
            "posture": Posture.Reactive,
            "threshold": 1,
            "within": 0,
        }
    )
    sent = [
        SendNotification(block_document_id=block, subject=SUBJECT, body=body) for block in blocks
    ]
    return AutomationCore.model_validate(
        {
            "name": name,
            "description": "Made by regrow from `notify:`; the next session makes it anew.",
            "trigger": trigger,
            "actions": sent,
        }
    )


def _form(one: AutomationCore) -> tuple[Any, ...]:
    """Return the parts of an automation that regrow sets."""
    trigger = one.trigger.model_dump(mode="json")
    return (
        sorted(trigger["expect"]),
        trigger["match"],
        [action.model_dump(mode="json") for action in one.actions],
    )


def _blocks(client: SyncPrefectClient, notify: Notify, owner: str) -> tuple[list[UUID], list[str]]:
    """Save the block documents. Returns their ids, and remarks about unusable addresses."""
    blocks, remarks = [], []
    for channel, variable in notify.addresses.items():
        address = os.environ.get(variable)
        if not address:
            remarks.append(
                f"notify.{channel}: the variable {variable} is not set here; set it, or no"
                " message is sent there"
            )
            continue
        try:
            block = _block(channel, address)
        except ValueError:  # the error's text may contain the address
            remarks.append(
                f"notify.{channel}: what {variable} holds is no address for {channel}; no"
                " message is sent there"
            )
            continue
        blocks.append(block.save(block_name(owner, channel), overwrite=True))
    if notify.block is not None:
        kind, _, name = notify.block.partition("/")
        try:
            blocks.append(client.read_block_document_by_name(name, kind, include_secrets=False).id)
        except ObjectNotFound:
            remarks.append(
                f"notify.block: Prefect has no block {notify.block!r}; it sends no message"
            )
    return blocks, remarks


def block_name(owner: str, channel: str) -> str:
    """Return the block document's name, of lower-case letters, digits and dashes."""
    plain = re.sub(r"[^a-z0-9]+", "-", owner.lower()).strip("-")
    return f"regrow-{plain}-{hashlib.sha256(owner.encode()).hexdigest()[:6]}-{channel}"


_BEGINNINGS: Mapping[str, str | tuple[str, ...]] = {
    "slack": "https://",
    "email": ("mailto://", "mailtos://"),
    "webhook": ("https://", "http://"),
}
"""How the addresses of a channel begin."""


def _block(channel: str, address: str) -> Any:
    """Return a block that sends to an address. Raises ValueError for what is none of its channel.

    Prefect has no block for a mail server, but its block for Slack passes addresses that are not
    Slack's to Apprise, which supports mail.
    """
    from prefect.blocks import notifications as blocks
    from prefect.types import SecretDict

    if not address.startswith(_BEGINNINGS.get(channel, "")):
        raise ValueError(f"no address of {channel}")
    match channel:
        case "slack" | "email":
            return blocks.SlackWebhook(url=SecretStr(address))
        case "teams":
            return blocks.MicrosoftTeamsWebhook(url=SecretStr(address))
        case "discord":
            found = re.search(r"^https://[^/]*discord[^/]*/api/webhooks/(\d+)/([\w-]+)", address)
            if found is None:
                raise ValueError("no webhook of Discord")
            number, token = map(SecretStr, found.groups())
            return blocks.DiscordWebhook(webhook_id=number, webhook_token=token)
        case _:
            return blocks.CustomWebhookNotificationBlock(
                name="regrow",
                headers=None,
                cookies=None,
                url="{{address}}",
                secrets=SecretDict({"address": address}),
                json_data={"subject": "{{subject}}", "body": "{{body}}"},
            )
