"""Container, Compose and Kubernetes files name real paths, flags, ports and times, and agree with each other."""

import json
import re
from dataclasses import fields
from typing import Any

import pytest
import yaml

from tests.project.repository import ROOT, flags_of, load_yaml, plait_commands, version

COMPOSE = ROOT / "deploy/compose.yaml"
KUBERNETES = ROOT / "deploy/kubernetes"
EXAMPLE = ROOT / "deploy/config.example.yaml"


def dockerfile() -> list[tuple[str, str]]:
    """(instruction, rest), continuation lines joined."""
    text = re.sub(r"^#.*\n", "", (ROOT / "Dockerfile").read_text(), flags=re.MULTILINE).replace("\\\n", " ")
    return [(line.split()[0], line.split(None, 1)[1]) for line in text.splitlines() if line.strip()]


def instructions(name: str) -> list[str]:
    return [rest for instruction, rest in dockerfile() if instruction == name]


def container() -> Any:
    (found,) = load_yaml(KUBERNETES / "deployment.yaml")["spec"]["template"]["spec"]["containers"]
    return found


def pod() -> Any:
    return load_yaml(KUBERNETES / "deployment.yaml")["spec"]["template"]["spec"]


def seconds(text: str) -> int:
    assert text.endswith("s")
    return int(text[:-1])


def grace_seconds() -> int:
    return int(load_yaml(EXAMPLE)["grace_seconds"])


def test_image_copies_only_what_exists_and_what_dockerignore_lets_in() -> None:
    let_in = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    copied = set()
    for line in instructions("COPY"):
        if not line.startswith("--from"):
            copied |= set(line.split()[:-1])
    assert copied == let_in
    assert {"server", "engine", "kernels", "pyproject.toml", "constraints.txt"} <= copied
    for name in copied:
        assert (ROOT / name).exists(), name


def test_image_runs_plait_directly_as_an_ordinary_user_and_stops_on_sigterm() -> None:
    assert json.loads(instructions("ENTRYPOINT")[0]) == ["plait"]
    assert json.loads(instructions("CMD")[0]) == ["serve", "--host", "0.0.0.0"]
    assert instructions("STOPSIGNAL") == ["SIGTERM"]
    assert instructions("EXPOSE") == ["8000"]
    (user,) = instructions("USER")
    assert user == str(pod()["securityContext"]["runAsUser"])
    assert user != "0"
    assert f"--uid {user}" in " ".join(instructions("RUN"))


def test_image_has_pinned_bases_a_compiler_and_a_health_check() -> None:
    for base in instructions("FROM"):
        assert re.fullmatch(r"[a-z]+:\d[\w.-]+( AS \w+)?", base), f"{base} has no version"
    assert "g++" in " ".join(instructions("RUN"))
    (check,) = instructions("HEALTHCHECK")
    assert "http://127.0.0.1:8000/health" in check
    assert "--constraint constraints.txt" in " ".join(instructions("RUN"))


def test_image_names_carry_the_version() -> None:
    tag = f"plait:{version()}"
    assert load_yaml(COMPOSE)["services"]["plait"]["image"] == tag
    assert container()["image"] == tag
    for page in (ROOT / "docs/deployment.md", ROOT / "Makefile", ROOT / "Dockerfile"):
        assert set(re.findall(r"\bplait:\d[\w.]*", page.read_text())) <= {tag}, page.name


def test_compose_mounts_what_exists() -> None:
    spec = load_yaml(COMPOSE)
    named = set(spec["volumes"])
    for service in spec["services"].values():
        for volume in service.get("volumes", ()):
            source = volume.split(":")[0]
            assert source in named or (COMPOSE.parent / source).exists(), source
    assert (COMPOSE.parent / spec["services"]["plait"]["build"]["context"]).resolve() == ROOT


def test_compose_uses_the_files_it_mounts() -> None:
    services = load_yaml(COMPOSE)["services"]
    command = services["plait"]["command"]
    config = command[command.index("--config") + 1]
    assert f"./config.example.yaml:{config}:ro" in services["plait"]["volumes"]
    (mount,) = (v for v in services["prometheus"]["volumes"] if v.startswith("./prometheus:"))
    inside = mount.split(":")[1]
    (flag,) = (c for c in services["prometheus"]["command"] if c.startswith("--config.file="))
    path = flag.removeprefix("--config.file=").replace(inside, str(COMPOSE.parent / "prometheus"))
    assert path == str(ROOT / "deploy/prometheus/prometheus.yaml")


def test_compose_opens_only_plait_to_others_and_pins_images() -> None:
    for name, service in load_yaml(COMPOSE)["services"].items():
        assert re.search(r":v?\d", service["image"]), name
        for port in service["ports"]:
            assert name == "plait" or port.startswith("127.0.0.1:"), f"{name} opens {port}"


def test_whoever_stops_plait_waits_longer_than_its_grace_time() -> None:
    assert seconds(load_yaml(COMPOSE)["services"]["plait"]["stop_grace_period"]) >= grace_seconds() + 10
    sleep = container()["lifecycle"]["preStop"]["exec"]["command"]
    assert sleep[0] == "sleep"
    assert pod()["terminationGracePeriodSeconds"] >= grace_seconds() + int(sleep[1]) + 10
    (stop,) = re.findall(r"`--time (\d+)`", (ROOT / "docs/deployment.md").read_text())
    assert int(stop) >= grace_seconds() + 10


def test_probes_ask_what_they_should_on_the_port_that_is_served() -> None:
    spec = container()
    (port,) = spec["ports"]
    assert port == {"name": "http", "containerPort": 8000}
    wanted = {"startupProbe": "/ready", "readinessProbe": "/ready", "livenessProbe": "/health"}
    for probe, path in wanted.items():
        assert spec[probe]["httpGet"] == {"path": path, "port": "http"}
    assert spec["args"][spec["args"].index("--port") + 1] == "8000"
    service = load_yaml(KUBERNETES / "service.yaml")
    assert service["spec"]["ports"] == [{"name": "http", "port": 8000, "targetPort": "http"}]


def test_selectors_find_the_pods() -> None:
    deployment = load_yaml(KUBERNETES / "deployment.yaml")
    labels = deployment["spec"]["template"]["metadata"]["labels"].items()
    monitor = load_yaml(KUBERNETES / "podmonitor.yaml")["spec"]
    selectors = [
        deployment["spec"]["selector"]["matchLabels"],
        load_yaml(KUBERNETES / "service.yaml")["spec"]["selector"],
        monitor["selector"]["matchLabels"],
    ]
    assert all(selector.items() <= labels for selector in selectors)
    annotations = deployment["spec"]["template"]["metadata"]["annotations"]
    assert (annotations["prometheus.io/port"], annotations["prometheus.io/path"]) == ("8000", "/metrics")
    (endpoint,) = monitor["podMetricsEndpoints"]
    assert (endpoint["port"], endpoint["path"]) == ("http", "/metrics")


def test_kustomization_lists_files_that_exist() -> None:
    for name in load_yaml(KUBERNETES / "kustomization.yaml")["resources"]:
        assert (KUBERNETES / name).exists()


def test_pod_has_no_rights_it_does_not_need_and_can_write_its_caches() -> None:
    assert pod()["securityContext"]["runAsNonRoot"] is True
    security = container()["securityContext"]
    assert security["readOnlyRootFilesystem"] is True
    assert security["allowPrivilegeEscalation"] is False
    assert security["capabilities"] == {"drop": ["ALL"]}
    mounts = {mount["name"]: mount["mountPath"] for mount in container()["volumeMounts"]}
    assert mounts == {"cache": "/home/plait/.cache", "tmp": "/tmp"}
    assert {volume["name"] for volume in pod()["volumes"]} == mounts.keys()


def test_container_has_room_for_the_memory_it_is_told_to_use() -> None:
    args = container()["args"]
    memory = args[args.index("--memory") + 1]
    limit = container()["resources"]["limits"]["memory"]
    assert memory.endswith("GiB")
    assert limit.endswith("Gi")
    assert int(limit[:-2]) >= int(memory[:-3]) + 1


@pytest.mark.parametrize("where", ["compose", "kubernetes", "image"])
def test_commands_use_flags_that_exist(where: str) -> None:
    command = {
        "compose": load_yaml(COMPOSE)["services"]["plait"]["command"],
        "kubernetes": container()["args"],
        "image": json.loads(instructions("CMD")[0]),
    }[where]
    known = flags_of(plait_commands()[command[0]])
    assert {word for word in command if word.startswith("--")} <= known


def example_keys() -> set[str]:
    """Keys of the example, those that are commented out included."""
    return set(re.findall(r"^(?:# )?([a-z_]+): \S", EXAMPLE.read_text(), re.MULTILINE))


def test_example_lines_that_are_commented_out_are_valid_too() -> None:
    text = re.sub(r"^# (?=[a-z_]+: \S)", "", EXAMPLE.read_text(), flags=re.MULTILINE)
    assert set(yaml.safe_load(text)) == example_keys()


def test_example_shows_the_defaults() -> None:
    """Compared with the two configuration objects; what is decided at start is commented out."""
    from plait_engine.config import EngineConfig
    from plait_server.cli.options import RENAMED
    from plait_server.config import ServerConfig

    keys = {field: key for key, field in RENAMED.items()}
    given = load_yaml(EXAMPLE)
    defaults = {
        keys.get(field.name, field.name): field.default for field in (*fields(EngineConfig), *fields(ServerConfig))
    }
    assert example_keys() <= defaults.keys()
    for key, value in given.items():
        assert value == defaults[key], f"{key}: the default is {defaults[key]}"
    for key in example_keys() - given.keys() - {"model"}:
        assert not defaults[key], f"{key} is commented out, but it has a default: {defaults[key]}"


FILE_ONLY = {"pins", "pin_share", "prefix_reuse", "require_state_complete", "fast_forward", "tune"}


def test_example_keys_are_flags_of_serve() -> None:
    known = flags_of(plait_commands()["serve"])
    assert {f"--{key.replace('_', '-')}" for key in example_keys() - {"model"} - FILE_ONLY} <= known
    assert not {f"--{key.replace('_', '-')}" for key in FILE_ONLY} & known
