"""The one object that is asked whether a principal may do something: an ACL image, super users, a default, a cache."""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from fleetlog.brokers.acls.image import AclImage, AclOperation, ResourceType, Verdict
from fleetlog.brokers.model import AUDIT_TOPIC

PROTECTED_OPERATIONS: Final = frozenset({AclOperation.WRITE, AclOperation.CREATE, AclOperation.DELETE})
"""What no principal may do with the audit topic, super users included; DeleteRecords asks for DELETE."""
CACHED_MAX: Final = 65_536
"""The most verdicts that are remembered; the names asked for are the clients' choice. About 20 MB, 100 at most."""
REMEMBERED_CHARACTERS_MAX: Final = 249
"""Longer names, which no topic has, are decided each time: groups' names of 32 KB would fill the memory."""

Question = tuple[str, str, AclOperation, ResourceType, str | None]
"""Principal, host, operation, resource type, and a name; None: any resource of the type."""


class AclRules:
    """Decides from one :class:`AclImage`; :meth:`replace` gives it the next one.

    ``super_users`` (principals as ``Type:name``) may do everything. ``allow_if_no_acl`` decides where no ACL applies to
    a resource (``allow.everyone.if.no.acl.found``). A caller may keep a verdict as long as the image stands.
    With ``audited`` no principal, super users included, may create, write or delete the audit topic.
    """

    def __init__(
        self,
        image: AclImage,
        super_users: Collection[str] = frozenset(),
        allow_if_no_acl: bool = False,
        *,
        audited: bool = False,
    ) -> None:
        self._image = image
        self._super_users = frozenset(super_users)
        self._allow_if_no_acl = allow_if_no_acl
        self._audited = audited
        self.verdicts: dict[Question, bool] = {}
        """What was decided since the ACLs changed, by :data:`Question`: a caller may look here first."""

    @property
    def image(self) -> AclImage:
        """The ACLs that decide now."""
        return self._image

    def replace(self, image: AclImage) -> None:
        """Decides by other ACLs from now on; the version must rise."""
        if image.version <= self._image.version:
            raise ValueError(f"the ACLs of version {image.version} cannot follow those of {self._image.version}")
        self._image = image
        self.verdicts.clear()

    def allows(self, principal: str, host: str, operation: AclOperation, kind: ResourceType, name: str) -> bool:
        """Whether the principal (``Type:name``) at that address may do the operation on the named resource."""
        question = (principal, host, operation, kind, name)
        verdict = self.verdicts.get(question)
        return self._decide_anew(question) if verdict is None else verdict

    def allows_any(self, principal: str, host: str, operation: AclOperation, kind: ResourceType) -> bool:
        """Whether the principal may do the operation on some resource of the type (InitProducerId without an id)."""
        question = (principal, host, operation, kind, None)
        verdict = self.verdicts.get(question)
        return self._decide_anew(question) if verdict is None else verdict

    def _decide_anew(self, question: Question) -> bool:
        verdict, name = self._decided(*question), question[-1]
        if name is None or len(name) <= REMEMBERED_CHARACTERS_MAX:
            if len(self.verdicts) >= CACHED_MAX:
                self.verdicts.clear()
            self.verdicts[question] = verdict
        return verdict

    def _decided(
        self, principal: str, host: str, operation: AclOperation, kind: ResourceType, name: str | None
    ) -> bool:
        if self._audited and name == AUDIT_TOPIC and kind is ResourceType.TOPIC and operation in PROTECTED_OPERATIONS:
            return False
        if principal in self._super_users:
            return True
        if name is None:
            verdict = self._image.decide_any(principal, host, operation, kind)
        else:
            verdict = self._image.decide(principal, host, operation, kind, name)
        return verdict is Verdict.ALLOWED or (verdict is Verdict.NO_ACL and self._allow_if_no_acl)
