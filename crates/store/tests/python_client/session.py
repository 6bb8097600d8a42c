"""What people do with the Python client, against the embedded API. Every step asserts; the last line is `done`."""

import datetime
import sys

from kubernetes import client, config, watch
from kubernetes.client.exceptions import ApiException

NAMESPACE = "default"


def config_map(name, **labels):
    metadata = client.V1ObjectMeta(name=name, labels=labels or None)
    return client.V1ConfigMap(metadata=metadata, data={"a": "1"})


def create_and_list(core):
    for name in ["one", "two", "three"]:
        core.create_namespaced_config_map(NAMESPACE, config_map(name, kind="x"))
    core.create_namespaced_config_map(NAMESPACE, config_map("other"))
    names = [item.metadata.name for item in core.list_namespaced_config_map(NAMESPACE).items]
    assert names == ["one", "other", "three", "two"], names
    chosen = core.list_namespaced_config_map(NAMESPACE, label_selector="kind=x")
    assert len(chosen.items) == 3
    page = core.list_namespaced_config_map(NAMESPACE, limit=3)
    rest = core.list_namespaced_config_map(NAMESPACE, limit=3, _continue=page.metadata._continue)
    assert (len(page.items), len(rest.items), rest.metadata._continue) == (3, 1, None)
    services = core.list_service_for_all_namespaces()
    assert [item.metadata.name for item in services.items] == ["kubernetes"]


def patch_three_ways(core):
    port = client.V1ServicePort(name="http", port=80)
    spec = client.V1ServiceSpec(ports=[port], selector={"app": "web"})
    made = core.create_namespaced_service(
        NAMESPACE, client.V1Service(metadata=client.V1ObjectMeta(name="web"), spec=spec)
    )
    assert made.spec.cluster_ip.startswith("10.96."), made.spec.cluster_ip
    patch = core.patch_namespaced_service
    strategic = {"spec": {"ports": [{"name": "https", "port": 443}]}}
    after = patch("web", NAMESPACE, strategic, _content_type="application/strategic-merge-patch+json")
    assert sorted(port.port for port in after.spec.ports) == [80, 443]
    merge = {"spec": {"ports": [{"name": "https", "port": 443}]}}
    after = patch("web", NAMESPACE, merge, _content_type="application/merge-patch+json")
    assert [port.port for port in after.spec.ports] == [443]
    operations = [{"op": "replace", "path": "/spec/ports/0/port", "value": 8443}]
    after = patch("web", NAMESPACE, operations, _content_type="application/json-patch+json")
    assert [port.port for port in after.spec.ports] == [8443]


def update_with_conflict(core):
    stale = core.read_namespaced_config_map("one", NAMESPACE)
    fresh = core.read_namespaced_config_map("one", NAMESPACE)
    fresh.data["a"] = "2"
    core.replace_namespaced_config_map("one", NAMESPACE, fresh)
    try:
        core.replace_namespaced_config_map("one", NAMESPACE, stale)
        raise AssertionError("the second of two updates must not win")
    except ApiException as error:
        assert error.status == 409, error


def follow_a_watch(core):
    start = core.list_namespaced_config_map(NAMESPACE).metadata.resource_version
    core.create_namespaced_config_map(NAMESPACE, config_map("watched"))
    core.delete_namespaced_config_map("watched", NAMESPACE)
    seen = []
    follower = watch.Watch()
    stream = follower.stream(
        core.list_namespaced_config_map, NAMESPACE, resource_version=start, timeout_seconds=10
    )
    for event in stream:
        seen.append((event["type"], event["object"].metadata.name))
        if len(seen) == 2:
            follower.stop()
    assert seen == [("ADDED", "watched"), ("DELETED", "watched")], seen


def follow_a_watch_across_a_410(core):
    """The test compacts the store between the two lines on stdout and stdin."""
    old = core.list_namespaced_config_map(NAMESPACE).metadata.resource_version
    for name in ["three", "two"]:
        core.patch_namespaced_config_map(name, NAMESPACE, {"data": {"b": "2"}})
    print("compact", flush=True)
    sys.stdin.readline()
    follower = watch.Watch()
    try:
        for event in follower.stream(core.list_namespaced_config_map, NAMESPACE, resource_version=old):
            raise AssertionError(f"what is forgotten cannot be told: {event}")
    except ApiException as error:
        assert error.status == 410, error
    # What every client does then: list anew, and go on from there.
    start = core.list_namespaced_config_map(NAMESPACE).metadata.resource_version
    core.create_namespaced_config_map(NAMESPACE, config_map("later"))
    follower = watch.Watch()
    for event in follower.stream(
        core.list_namespaced_config_map, NAMESPACE, resource_version=start, timeout_seconds=10
    ):
        assert (event["type"], event["object"].metadata.name) == ("ADDED", "later")
        follower.stop()


def read_events(core, events):
    reference = client.V1ObjectReference(kind="Service", name="web", namespace=NAMESPACE)
    body = client.CoreV1Event(
        metadata=client.V1ObjectMeta(name="web.1"),
        involved_object=reference,
        reason="Tested",
        message="by the Python client",
        type="Normal",
        event_time=datetime.datetime.now(datetime.timezone.utc),
        reporting_component="python",
        reporting_instance="test",
        action="Test",
    )
    core.create_namespaced_event(NAMESPACE, body)
    found = core.list_namespaced_event(NAMESPACE, field_selector="involvedObject.name=web").items
    assert [event.message for event in found] == ["by the Python client"]
    other = events.read_namespaced_event("web.1", NAMESPACE)
    assert (other.note, other.regarding.name) == ("by the Python client", "web")


def delete_collections(core):
    core.delete_collection_namespaced_config_map(NAMESPACE, label_selector="kind=x")
    names = [item.metadata.name for item in core.list_namespaced_config_map(NAMESPACE).items]
    assert names == ["later", "other"], names


def ask_about_itself():
    review = client.AuthenticationV1Api().create_self_subject_review(client.V1SelfSubjectReview())
    assert review.status.user_info.username == "kubernetes-admin"


def act_as_a_service_account(core):
    """A role, a binding and a token: the token may do what the role says, and ends with its account."""
    rbac, meta = client.RbacAuthorizationV1Api(), client.V1ObjectMeta
    core.create_namespaced_service_account(NAMESPACE, client.V1ServiceAccount(metadata=meta(name="bot")))
    rule = client.V1PolicyRule(api_groups=[""], resources=["configmaps"], verbs=["get", "list"])
    rbac.create_namespaced_role(NAMESPACE, client.V1Role(metadata=meta(name="bot"), rules=[rule]))
    binding = client.V1RoleBinding(
        metadata=meta(name="bot"),
        role_ref=client.V1RoleRef(api_group="rbac.authorization.k8s.io", kind="Role", name="bot"),
        subjects=[client.RbacV1Subject(kind="ServiceAccount", name="bot", namespace=NAMESPACE)],
    )
    rbac.create_namespaced_role_binding(NAMESPACE, binding)
    request = client.AuthenticationV1TokenRequest(spec=client.V1TokenRequestSpec(audiences=[]))
    token = core.create_namespaced_service_account_token("bot", NAMESPACE, request).status.token
    own = client.Configuration.get_default_copy()
    own.cert_file = own.key_file = None
    own.api_key, own.api_key_prefix = {"authorization": token}, {"authorization": "Bearer"}
    bot = client.CoreV1Api(client.ApiClient(own))
    assert len(bot.list_namespaced_config_map(NAMESPACE).items) == 2
    for refused in [
        lambda: bot.list_config_map_for_all_namespaces(),
        lambda: bot.delete_namespaced_config_map("later", NAMESPACE),
        lambda: bot.list_namespaced_secret(NAMESPACE),
    ]:
        try:
            refused()
            raise AssertionError("a service account has the rights of its roles alone")
        except ApiException as error:
            assert error.status == 403, error
    review = client.V1TokenReview(spec=client.V1TokenReviewSpec(token=token))
    status = client.AuthenticationV1Api().create_token_review(review).status
    assert status.authenticated and status.user.username == f"system:serviceaccount:{NAMESPACE}:bot", status
    asked = client.V1ResourceAttributes(namespace=NAMESPACE, verb="list", resource="configmaps")
    spec = client.V1SubjectAccessReviewSpec(user=status.user.username, resource_attributes=asked)
    access = client.AuthorizationV1Api().create_subject_access_review(client.V1SubjectAccessReview(spec=spec))
    assert access.status.allowed, access.status
    core.delete_namespaced_service_account("bot", NAMESPACE)
    try:
        bot.list_namespaced_config_map(NAMESPACE)
        raise AssertionError("a token ends with its service account")
    except ApiException as error:
        assert error.status == 401, error


def main():
    config.load_kube_config(sys.argv[1])
    core, events = client.CoreV1Api(), client.EventsV1Api()
    create_and_list(core)
    patch_three_ways(core)
    update_with_conflict(core)
    follow_a_watch(core)
    follow_a_watch_across_a_410(core)
    read_events(core, events)
    delete_collections(core)
    ask_about_itself()
    act_as_a_service_account(core)
    print("done", flush=True)


main()
