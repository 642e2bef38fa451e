"""examples/cluster: the scripts run on a Slurm of one machine, and manifests have the fields that
their operators know."""

import os
import re
import stat
import subprocess
import tempfile
import unittest

from hotrow.__main__ import program
from test_command import HAS_PROGRAM, command

try:
    import yaml
except ImportError:
    yaml = None

FOLDER = os.path.join(os.path.dirname(__file__), "..", "..", "examples", "cluster")
SBATCH = {"job-name", "nodes", "ntasks-per-node", "cpus-per-task", "mem", "time", "requeue",
          "open-mode"}

# Fields by the kind of object, from the Go types of kubernetes/api, mpi-operator and
# training-operator; those with ! must be there. A value is the kind of the member, in brackets that
# of a list's.
TYPES = {
    "MPIJob": {"apiVersion!": "kubeflow.org/v2beta1", "kind!": None, "metadata!": "Meta",
               "spec!": "MPIJobSpec"},
    "MPIJobSpec": {"slotsPerWorker": int, "runPolicy": "RunPolicy", "mpiReplicaSpecs!": "MPIRoles",
                   "sshAuthMountPath": str, "mpiImplementation": str},
    "MPIRoles": {"Launcher!": "Replica", "Worker": "Replica"},
    "PyTorchJob": {"apiVersion!": "kubeflow.org/v1", "kind!": None, "metadata!": "Meta",
                   "spec!": "PyTorchJobSpec"},
    "PyTorchJobSpec": {"nprocPerNode": str, "elasticPolicy": "Elastic", "runPolicy": "RunPolicy",
                       "pytorchReplicaSpecs!": "TorchRoles"},
    "TorchRoles": {"Master": "Replica", "Worker": "Replica"},
    "Elastic": {"rdzvBackend": str, "rdzvHost": str, "rdzvPort": int, "minReplicas": int,
                "maxReplicas": int, "maxRestarts": int},
    "RunPolicy": {"cleanPodPolicy": ("None", "Running", "All"), "backoffLimit": int,
                  "ttlSecondsAfterFinished": int, "activeDeadlineSeconds": int, "suspend": bool},
    "Replica": {"replicas": int, "restartPolicy": ("Always", "OnFailure", "Never", "ExitCode"),
                "template!": "Template"},
    "Template": {"metadata": "Meta", "spec!": "Pod"},
    "Pod": {"containers!": ["Container"], "volumes": ["Volume"], "nodeSelector": dict},
    "Container": {"name!": str, "image!": str, "command": [str], "args": [str], "env": ["Env"],
                  "resources": "Resources", "volumeMounts": ["Mount"]},
    "Env": {"name!": str, "value": str},
    "Mount": {"name!": str, "mountPath!": str, "readOnly": bool},
    "Resources": {"requests": dict, "limits": dict},
    "Volume": {"name!": str, "persistentVolumeClaim": "ClaimRef"},
    "ClaimRef": {"claimName!": str},
    "PersistentVolumeClaim": {"apiVersion!": "v1", "kind!": None, "metadata!": "Meta",
                              "spec!": "ClaimSpec"},
    "ClaimSpec": {"accessModes!": [("ReadWriteOnce", "ReadWriteMany")], "resources!": "Resources",
                  "storageClassName": str},
    "Meta": {"name!": str, "labels": dict},
}


def wrong(value, kind, place):
    """What is wrong with a value, a line each."""
    if isinstance(kind, list):
        if not isinstance(value, list):
            return [f"{place}: must be a list"]
        parts = [wrong(each, kind[0], f"{place}[{i}]") for i, each in enumerate(value)]
        return sum(parts, [])
    if isinstance(kind, tuple):
        return [] if value in kind else [f"{place}: is {value!r}, must be one of {kind}"]
    if kind is None or isinstance(kind, type):
        good = kind is None or isinstance(value, kind)
        return [] if good else [f"{place}: is {value!r}, must be {kind.__name__}"]
    if kind not in TYPES:
        return [] if value == kind else [f"{place}: is {value!r}, must be {kind!r}"]
    if not isinstance(value, dict):
        return [f"{place}: must be a map"]
    fields = TYPES[kind]
    out = [f"{place}.{name[:-1]}: is missing"
           for name in fields if name.endswith("!") and name[:-1] not in value]
    for name, member in value.items():
        known = [field for field in (name, name + "!") if field in fields]
        out += (wrong(member, fields[known[0]], f"{place}.{name}") if known
                else [f"{place}.{name}: {kind} has no such field"])
    return out


def pods(value):
    """All of an object's pods."""
    if isinstance(value, dict):
        if "containers" in value:
            yield value
        for member in value.values():
            yield from pods(member)


@unittest.skipUnless(yaml, "python3-yaml is not installed")
class ManifestsTest(unittest.TestCase):
    def manifests(self, name):
        with open(os.path.join(FOLDER, name), encoding="utf-8") as file:
            return list(yaml.safe_load_all(file))

    def test_fields_are_those_of_the_operators(self):
        for file in ("mpijob.yaml", "pytorchjob.yaml"):
            for manifest in self.manifests(file):
                self.assertEqual(wrong(manifest, manifest["kind"], file), [])
                for pod in pods(manifest):
                    volumes = {volume["name"] for volume in pod.get("volumes", [])}
                    mounts = {mount["name"] for container in pod["containers"]
                              for mount in container.get("volumeMounts", [])}
                    self.assertEqual(mounts, volumes, file)
        [job] = self.manifests("pytorchjob.yaml")
        worker = job["spec"]["pytorchReplicaSpecs"]["Worker"]
        self.assertEqual(worker["template"]["spec"]["containers"][0]["name"], "pytorch")
        job["spec"]["template"] = {}
        worker["replicas"] = "2"
        self.assertEqual(wrong(job, "PyTorchJob", "job"), [
            "job.spec.pytorchReplicaSpecs.Worker.replicas: is '2', must be int",
            "job.spec.template: PyTorchJobSpec has no such field",
        ])

    @unittest.skipUnless(HAS_PROGRAM, "this build has no program")
    def test_the_trainer_knows_its_flags(self):
        job = self.manifests("mpijob.yaml")[0]["spec"]
        launcher = job["mpiReplicaSpecs"]["Launcher"]["template"]["spec"]["containers"][0]
        ranks = launcher["args"][launcher["args"].index("-n") + 1]
        workers = job["mpiReplicaSpecs"]["Worker"]["replicas"]
        self.assertEqual(int(ranks), job["slotsPerWorker"] * workers)
        flags = launcher["args"][launcher["args"].index("hotrow") + 1:]
        done = command(*flags, "--help")  # parses all that stands before
        self.assertEqual(done.returncode, 0, done.stderr)


class ScriptsTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name

    def run_script(self, name, programs, **variables):
        for program, text in programs.items():
            path = os.path.join(self.folder, program)
            with open(path, "w", encoding="utf-8") as file:
                file.write("#!/bin/sh\n" + text)
            os.chmod(path, os.stat(path).st_mode | stat.S_IXUSR)
        path = os.path.join(FOLDER, name)
        with open(path, encoding="utf-8") as file:
            options = re.findall(r"^#SBATCH --([\w-]+)", file.read(), re.M)
        self.assertLessEqual(set(options), SBATCH)
        environment = {"PATH": f"{self.folder}:{os.environ['PATH']}", **variables}
        done = subprocess.run(["bash", path, "--epochs=2"], env={**os.environ, **environment},
                              capture_output=True, text=True, timeout=60, check=False)
        self.assertEqual(done.returncode, 0, done.stderr)
        return done.stdout

    @unittest.skipUnless(HAS_PROGRAM, "this build has no program")
    def test_a_trainer_starts_and_goes_on(self):
        programs = {"mpirun": 'shift 2; exec "$@"', "hotrow": f'exec {program()} "$@"'}
        job = os.path.join(self.folder, "job")
        variables = {"JOB": job, "DATA": "synthetic:tables=2,rows=50,samples=4096,valid=99,test=99",
                     "STORE_BYTES": "64MiB", "SLURM_NTASKS": "2", "SLURM_CPUS_PER_TASK": "1"}
        self.assertIn("test AUC", self.run_script("trainer.sbatch", programs, **variables))
        self.assertTrue(os.listdir(os.path.join(job, "checkpoints")))
        self.assertIn("nothing was left to train",
                      self.run_script("trainer.sbatch", programs, **variables))

    def test_torchrun_meets_on_the_first_machine(self):
        programs = {"scontrol": "echo node07; echo node08", "srun": 'echo "$@"'}
        out = self.run_script("torchrun.sbatch", programs, SLURM_NNODES="2", SLURM_JOB_ID="77",
                              SLURM_JOB_NODELIST="node[07-08]")
        self.assertIn("--nnodes=2", out)
        self.assertIn("--rdzv-id=77 --rdzv-endpoint=node07:29400 train.py --epochs=2", out)


if __name__ == "__main__":
    unittest.main()
