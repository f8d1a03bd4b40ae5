"""The recipes of examples/serving are whole: what they copy is there, what they run is a command, their parts fit."""

import importlib.util
import re
import shlex
import tomllib
from pathlib import Path

import click
import pytest

from polyhead.cli.main import commands
from support.admin_server import make

yaml = pytest.importorskip("yaml")
ROOT = Path(__file__).parents[2]
SERVING = ROOT / "examples" / "serving"
KUBERNETES = SERVING / "kubernetes"
KUSTOMIZATIONS = sorted(KUBERNETES.rglob("kustomization.yaml"))
MANIFESTS = sorted(path for path in KUBERNETES.rglob("*.yaml") if path not in KUSTOMIZATIONS)
READY, LIVE = "/v2/health/ready", "/v2/health/live"


def layers():
    """Instruction and arguments of each line of the Containerfile, lines that go on joined."""
    text = (SERVING / "Containerfile").read_text().replace("\\\n", " ")
    lines = [line for line in text.splitlines() if line.strip() and not line.startswith("#")]
    return [line.split(" ", 1) for line in lines]


def of(kind):
    return [arguments for name, arguments in layers() if name == kind]


def as_list(arguments):
    import json

    return json.loads(arguments)


def check_command(words):
    """The words are a command line of ours: options that exist, of values that are allowed."""
    context, command = click.Context(commands), commands
    while isinstance(command, click.Group):
        command = command.get_command(context, words[0])
        words = words[1:]
        assert command is not None, words
    command.make_context("polyhead", list(words))


def test_every_source_that_the_image_copies_is_there():
    assert of("FROM") == ["docker.io/library/python:3.11-slim"]
    for arguments in of("COPY"):
        *sources, target = arguments.split()
        assert target.startswith("./") and all((ROOT / source).exists() for source in sources)


def test_what_the_image_installs_is_pinned_and_has_no_torch():
    (line,) = [words for words in map(shlex.split, of("RUN")) if words[0] == "pip"]
    assert line[1] == "install" and line[line.index("-c") + 1] == "constraints.txt"
    (package,) = [word for word in line if word.startswith(".[")]
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = package[2:-1].split(",")
    wanted = [
        *declared["dependencies"],
        *(each for extra in extras for each in declared["optional-dependencies"][extra]),
    ]
    names = {re.match(r"[\w.-]+", each)[0].lower() for each in wanted}
    pinned = {line.partition("==")[0].lower() for line in (ROOT / "constraints.txt").read_text().splitlines()}
    assert names <= pinned and not names & {"torch", "transformers"}
    copied = {source for arguments in of("COPY") for source in arguments.split()[:-1]}
    files = {declared["readme"], *declared["license-files"], "pyproject.toml", "constraints.txt", "src"}
    assert files <= copied, "the build reads them"


def test_the_image_runs_a_command_of_ours_as_nobody_in_particular():
    (entry,), (command,), (user,), (health,) = map(of, ("ENTRYPOINT", "CMD", "USER", "HEALTHCHECK"))
    assert as_list(entry) == ["polyhead"] and user.isdecimal() and int(user) >= 10_000
    check_command(as_list(command))
    assert as_list(command)[as_list(command).index("--port") + 1] in of("EXPOSE")
    asked = as_list(health.partition("CMD ")[2])
    assert asked[:2] == ["python", "-c"] and f":{of('EXPOSE')[0]}{READY}" in asked[2]
    compile(asked[2], "healthcheck", "exec")


@pytest.mark.parametrize("path", MANIFESTS, ids=lambda path: path.stem)
def test_manifests_are_what_kubernetes_takes(path):
    """Against its schemas, where the package that has them is installed."""
    manifest = yaml.safe_load(path.read_text())
    assert set(manifest) >= {"apiVersion", "kind", "metadata"}
    if importlib.util.find_spec("kubernetes_validate") is not None:
        import kubernetes_validate

        kubernetes_validate.validate(manifest, kubernetes_validate.latest_version(), strict=True)


def test_manifests_fit_together():
    by_kind = {manifest["kind"]: manifest for manifest in (yaml.safe_load(path.read_text()) for path in MANIFESTS)}
    deployment, service, budget = (by_kind[kind] for kind in ("Deployment", "Service", "PodDisruptionBudget"))
    pods = deployment["spec"]["template"]
    labels = pods["metadata"]["labels"]
    assert deployment["spec"]["selector"]["matchLabels"] == labels == service["spec"]["selector"]
    assert budget["spec"]["selector"]["matchLabels"] == labels
    assert budget["spec"]["minAvailable"] < deployment["spec"]["replicas"]
    assert by_kind["Job"]["spec"]["template"]["metadata"]["labels"] != labels, "the address leads to servers alone"
    assert deployment["spec"]["strategy"]["rollingUpdate"] == {"maxUnavailable": 0, "maxSurge": 1}
    (container,) = pods["spec"]["containers"]
    port = container["ports"][0]
    probes = [container[name] for name in ("startupProbe", "readinessProbe", "livenessProbe")]
    assert [probe["httpGet"]["path"] for probe in probes] == [READY, READY, LIVE]
    assert all(probe["httpGet"]["port"] == port["name"] for probe in probes)
    assert service["spec"]["ports"][0]["targetPort"] == port["name"]
    check_command(container["args"])
    assert str(port["containerPort"]) == container["args"][container["args"].index("--port") + 1]
    hook = int(container["lifecycle"]["preStop"]["exec"]["command"][-1])
    from polyhead.serve.settings import ServeSettings

    assert pods["spec"]["terminationGracePeriodSeconds"] >= ServeSettings().drain_seconds + hook
    volumes = {volume["name"] for volume in pods["spec"]["volumes"]}
    assert {mount["name"] for mount in container["volumeMounts"]} == volumes
    claim = by_kind["PersistentVolumeClaim"]["metadata"]["name"]
    specs = [pods["spec"], by_kind["Job"]["spec"]["template"]["spec"], by_kind["Pod"]["spec"]]
    for spec in specs:
        assert spec["volumes"][0]["persistentVolumeClaim"]["claimName"] == claim
        (each,), user = spec["containers"], spec["securityContext"]
        assert each["image"] == container["image"] and not each["image"].endswith(":latest")
        assert {user[name] for name in ("runAsUser", "runAsGroup", "fsGroup")} == {int(of("USER")[0])}
    check_command(specs[1]["containers"][0]["args"])


def test_the_kustomization_holds_all_that_answers_and_no_job():
    whole = yaml.safe_load((KUBERNETES / "kustomization.yaml").read_text())
    assert {KUBERNETES / name for name in whole["resources"]} == set(KUBERNETES.glob("*.yaml")) & set(MANIFESTS)
    kinds = {yaml.safe_load((KUBERNETES / name).read_text())["kind"]: name for name in whole["resources"]}
    assert {"Namespace", "PersistentVolumeClaim", "Deployment", "Service", "PodDisruptionBudget"} == set(kinds)
    namespace = yaml.safe_load((KUBERNETES / kinds["Namespace"]).read_text())
    assert namespace["metadata"]["name"] == whole["namespace"]
    deployment = yaml.safe_load((KUBERNETES / kinds["Deployment"]).read_text())
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    (image,), (secret,) = whole["images"], whole["secretGenerator"]
    assert container["image"] == f"{image['name']}:{image['newTag']}"
    wanted = container["env"][0]["valueFrom"]["secretKeyRef"]
    lines = [(KUBERNETES / name).read_text().splitlines() for name in secret["envs"]]
    keys = {line.partition("=")[0] for line in sum(lines, []) if line and not line.startswith("#")}
    assert wanted["name"] == secret["name"] and wanted["key"] in keys


def test_the_patches_for_one_node_find_what_they_change():
    by_kind = {manifest["kind"]: manifest for manifest in (yaml.safe_load(path.read_text()) for path in MANIFESTS)}
    small = yaml.safe_load((KUBERNETES / "one-node" / "kustomization.yaml").read_text())
    assert (KUBERNETES / "one-node" / small["resources"][0]).resolve() == KUBERNETES and len(small["patches"]) == 3
    for patch in small["patches"]:
        for change in yaml.safe_load(patch["patch"]):
            place = by_kind[patch["target"]["kind"]]
            for step in change["path"].strip("/").split("/"):
                place = place[step]
            assert change["op"] == "replace" and type(place) is type(change["value"]) and place != change["value"]


def test_the_compose_file_fits_the_image_and_the_proxy():
    compose = yaml.safe_load((SERVING / "compose.yaml").read_text())
    server, address = compose["services"]["server"], compose["services"]["address"]
    build = server["build"]
    assert (SERVING / build["context"]).resolve() == ROOT and (ROOT / build["dockerfile"]).is_file()
    assert server["deploy"]["replicas"] >= 2 and READY in server["healthcheck"]["test"][-1]
    for volume in address["volumes"]:
        assert (SERVING / volume.split(":")[0]).is_file()
    proxy = (SERVING / "haproxy.cfg").read_text()
    port = of("EXPOSE")[0]
    assert f"server:{port} check" in proxy and f"httpchk GET {READY}" in proxy and f"bind :{port}" in proxy
    assert address["ports"] == [f"{port}:{port}"]
    compile(server["healthcheck"]["test"][-1], "healthcheck", "exec")


@pytest.mark.slow
def test_replicas_of_ray_answer(tmp_path):
    """Where Ray Serve is installed; two replicas on this machine."""
    ray, serve = pytest.importorskip("ray"), pytest.importorskip("ray.serve")
    import json
    import urllib.request

    from examples.serving.ray_serve import build
    from polyhead.serve.run import bound

    root = make(tmp_path / "b", "mood", "topics")
    probe = bound("127.0.0.1", 0)
    port = probe.getsockname()[1]
    probe.close()
    paths = f"{ROOT / 'src'}:{ROOT}"
    ray.init(num_cpus=2, include_dashboard=False, runtime_env={"env_vars": {"PYTHONPATH": paths}})
    try:
        serve.start(http_options={"host": "127.0.0.1", "port": port})
        given = {"bundle": str(root), "backend": "reference", "replicas": "2", "processors": "0.5"}
        serve.run(build(given))
        body = json.dumps({"inputs": ["good"]}).encode()
        for _ in range(4):
            request = urllib.request.Request(f"http://127.0.0.1:{port}/v1/predict", body)
            with urllib.request.urlopen(request, timeout=60) as answer:
                assert set(json.load(answer)["results"][0]["answers"]) == {"mood", "topics"}
    finally:
        serve.shutdown()
        ray.shutdown()
