"""`hotrow serve`, with the standard library and with tritonclient."""

import json
import os
import random
import re
import signal
import struct
import subprocess
import tempfile
import unittest
import urllib.error
import urllib.request

import hotrow.__main__
import numpy

try:
    import tritonclient.http as triton
    from tritonclient.utils import InferenceServerException
except ImportError:
    triton = None
try:
    import grpc
    import tritonclient.grpc as triton_grpc
    from tritonclient.grpc import service_pb2, service_pb2_grpc
    from tritonclient.utils import InferenceServerException
except ImportError:
    triton_grpc = None

PROGRAM = hotrow.__main__.program()
LINES = 120


def run(*arguments):
    return subprocess.run([PROGRAM, *arguments], capture_output=True, text=True, timeout=120,
                          check=True).stdout


def bits(numbers):
    return [struct.pack("<f", number) for number in numbers]


class Served:
    """A server of a small model, while the cases of a class run."""

    flags = ()

    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(cls.folder.cleanup)
        folder = cls.folder.name
        draw = random.Random(3)
        cls.lines = [f"{draw.randrange(50)}.5,{draw.randrange(40)},{draw.randrange(90)}"
                     for _ in range(LINES)]
        with open(f"{folder}/log.csv", "w", encoding="utf-8") as file:
            file.write("click,price,user,item\n")
            file.writelines(f"{draw.randrange(2)},{line}\n" for line in cls.lines)
        with open(f"{folder}/lines.csv", "w", encoding="utf-8") as file:
            file.writelines(f"{line}\n" for line in ["price,user,item", *cls.lines])
        column = {"role": "categorical", "key": "integer", "num_embeddings": 100}
        with open(f"{folder}/schema.json", "w", encoding="utf-8") as file:
            json.dump({"name": "log", "files": ["log.csv"],
                       "split": {"modulo": 10, "valid": [8], "test": [9]},
                       "columns": [{"name": "click", "role": "label"},
                                   {"name": "price", "role": "dense"},
                                   {"name": "user", **column}, {"name": "item", **column}]}, file)
        run("train", "dlrm", f"--data=table:{folder}/schema.json", "--batch_size=20",
            f"--save_dir={folder}/model", "--embedding_dim=4", "--dense_arch_layer_sizes=8-4",
            "--over_arch_layer_sizes=8-1")
        text = run("score", f"{folder}/model", f"{folder}/lines.csv", "--score=logit")
        cls.logits = [float(line) for line in text.split()]
        cls.server = subprocess.Popen([PROGRAM, "serve", f"{folder}/model", "--port=0", *cls.flags],
                                      stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        lines = [cls.server.stdout.readline() for _ in ("HTTP", *cls.flags)]
        found = re.search(r"http://(127\.0\.0\.1:[0-9]+)/v2/models/dlrm\n", lines[-1])
        if found is None:
            cls.server.kill()
            error = cls.server.communicate()[1]
            for package in ("libcpp-httplib-dev", "libgrpc++-dev"):
                if package in error:
                    raise unittest.SkipTest(f"this build has no server: {package}")
            raise AssertionError("".join(lines) + error)
        cls.addClassCleanup(cls.stop)
        cls.address = found.group(1)
        if cls.flags:
            cls.grpc_address = re.fullmatch(r"Serving gRPC at (\S+)\n", lines[0]).group(1)

    @classmethod
    def stop(cls):
        cls.server.send_signal(signal.SIGTERM)
        cls.server.communicate(timeout=60)
        if cls.server.returncode != 0:
            raise AssertionError(f"hotrow serve ended with {cls.server.returncode}")

    def features(self):
        price, user, item = zip(*(line.split(",") for line in self.lines))
        return (numpy.array(price, dtype=numpy.float32).reshape(-1, 1),
                numpy.array(user, dtype=numpy.int64), numpy.array(item, dtype=numpy.int64))


@unittest.skipUnless(os.path.exists(PROGRAM), "this build has no program")
class ServingTest(Served, unittest.TestCase):
    def test_json(self):
        body = {"id": "7", "outputs": [{"name": "logits"}],
                "inputs": [{"name": "lines", "datatype": "BYTES", "shape": [LINES],
                            "data": list(self.lines)}]}
        url = f"http://{self.address}/v2/models/dlrm/infer"
        with urllib.request.urlopen(url, json.dumps(body).encode("utf-8"), timeout=60) as reply:
            answer = json.load(reply)
        self.assertEqual(answer["id"], "7")
        self.assertEqual(bits(answer["outputs"][0]["data"]), bits(self.logits))
        body["inputs"][0]["data"][3] = "1"
        with self.assertRaises(urllib.error.HTTPError) as caught:
            urllib.request.urlopen(url, json.dumps(body).encode("utf-8"), timeout=60)
        self.assertEqual(caught.exception.code, 400)
        self.assertIn("line 4", json.load(caught.exception)["error"])
        caught.exception.close()

    @unittest.skipIf(triton is None, "tritonclient[http] is not installed")
    def test_tritonclient(self):
        with triton.InferenceServerClient(self.address) as client:
            self.assertTrue(client.is_server_live())
            self.assertTrue(client.is_server_ready())
            self.assertTrue(client.is_model_ready("dlrm"))
            server = client.get_server_metadata()
            self.assertEqual(server["name"], "hotrow")
            self.assertIn("statistics", server["extensions"])
            before = client.get_inference_statistics("dlrm")["model_stats"][0]
            metadata = client.get_model_metadata("dlrm")
            self.assertEqual([tensor["name"] for tensor in metadata["inputs"]],
                             ["user", "item", "dense"])
            index = client.get_model_repository_index()
            self.assertEqual([(model["name"], model["state"]) for model in index],
                             [("dlrm", "READY")])
            with self.assertRaisesRegex(InferenceServerException, "--follow_ms"):
                client.load_model("dlrm")
            with self.assertRaisesRegex(InferenceServerException, "--follow_ms"):
                client.unload_model("other")
            self.assertEqual(client.get_model_config("dlrm")["max_batch_size"], 0)

            price, user, item = self.features()
            for binary in (True, False):
                inputs = [triton.InferInput("user", [LINES], "INT64"),
                          triton.InferInput("item", [LINES, 1], "INT64"),
                          triton.InferInput("dense", [LINES, 1], "FP32")]
                inputs[0].set_data_from_numpy(user, binary_data=binary)
                inputs[1].set_data_from_numpy(item.reshape(-1, 1), binary_data=binary)
                inputs[2].set_data_from_numpy(price, binary_data=binary)
                wishes = [triton.InferRequestedOutput("logits", binary_data=binary),
                          triton.InferRequestedOutput("scores", binary_data=not binary)]
                for outputs in (wishes, None):
                    result = client.infer("dlrm", inputs, outputs=outputs, request_id="t")
                    logits = result.as_numpy("logits")
                    self.assertEqual(logits.shape, (LINES, 1))
                    self.assertEqual(bits(logits[:, 0]), bits(self.logits))
                    self.assertEqual(result.as_numpy("scores").dtype, numpy.float32)
                    self.assertEqual(result.get_response()["id"], "t")

            lines = triton.InferInput("lines", [LINES], "BYTES")
            lines.set_data_from_numpy(numpy.array(self.lines, dtype=object))
            result = client.infer("dlrm", [lines])
            self.assertEqual(bits(result.as_numpy("logits")[:, 0]), bits(self.logits))

            # Texts and numbers of 16 bits, which all prices have.
            for binary in (True, False):
                texts = [triton.InferInput("user", [LINES], "BYTES"),
                         triton.InferInput("item", [LINES, 1], "BYTES"),
                         triton.InferInput("dense", [LINES, 1], "FP16")]
                for tensor, keys in zip(texts, (user, item.reshape(-1, 1))):
                    tensor.set_data_from_numpy(keys.astype(str).astype(object),
                                               binary_data=binary)
                texts[2].set_data_from_numpy(price.astype(numpy.float16))
                result = client.infer("dlrm", texts)
                self.assertEqual(bits(result.as_numpy("logits")[:, 0]), bits(self.logits))
            wrong = numpy.array(["7"] * 5 + ["seven"] + ["7"] * (LINES - 6), dtype=object)
            texts[0].set_data_from_numpy(wrong)
            with self.assertRaisesRegex(InferenceServerException,
                                        r'"user", position \[5\].*"seven"'):
                client.infer("dlrm", texts)

            # One user with all items.
            inputs[0] = triton.InferInput("user", [1], "INT64")
            inputs[0].set_data_from_numpy(user[:1])
            scores = client.infer("dlrm", inputs).as_numpy("logits")
            self.assertEqual(bits(scores[:1, 0]), bits(self.logits[:1]))

            inputs[0].set_data_from_numpy(numpy.array([100], dtype=numpy.int64))
            with self.assertRaisesRegex(InferenceServerException, "key 100 is not in"):
                client.infer("dlrm", inputs)
            many = [client.async_infer("dlrm", [lines]) for _ in range(8)]
            for waiting in many:
                self.assertEqual(bits(waiting.get_result().as_numpy("logits")[:, 0]),
                                 bits(self.logits))

            after = client.get_inference_statistics()["model_stats"][0]
            self.assertEqual((after["name"], after["version"]), ("dlrm", metadata["versions"][0]))
            # Four with keys, two with texts, nine with lines, one with candidates; two were wrong.
            self.assertEqual(after["inference_count"] - before["inference_count"], 16 * LINES)
            self.assertEqual(after["execution_count"] - before["execution_count"], 16)
            for part in ("success", "queue", "compute_input", "compute_infer", "compute_output"):
                numbers = after["inference_stats"][part]
                self.assertEqual(numbers["count"] - before["inference_stats"][part]["count"], 16)
                self.assertGreater(numbers["ns"], 0)
            self.assertEqual(after["inference_stats"]["fail"]["count"] -
                             before["inference_stats"]["fail"]["count"], 2)


@unittest.skipUnless(os.path.exists(PROGRAM), "this build has no program")
@unittest.skipIf(triton_grpc is None, "tritonclient[grpc] is not installed")
class GrpcServingTest(Served, unittest.TestCase):
    flags = ("--grpc_port=0",)

    def test_tritonclient(self):
        with triton_grpc.InferenceServerClient(self.grpc_address) as client:
            self.assertTrue(client.is_server_live())
            self.assertTrue(client.is_server_ready())
            self.assertTrue(client.is_model_ready("dlrm"))
            self.assertEqual(client.get_server_metadata().name, "hotrow")
            metadata = client.get_model_metadata("dlrm")
            self.assertEqual([tensor.name for tensor in metadata.inputs],
                             ["user", "item", "dense"])
            self.assertEqual(list(metadata.inputs[2].shape), [-1, 1])
            config = client.get_model_config("dlrm").config
            self.assertEqual((config.backend, config.max_batch_size), ("hotrow", 0))
            self.assertEqual([tensor.data_type for tensor in config.input], [9, 9, 11])
            index = client.get_model_repository_index().models
            self.assertEqual([(model.name, model.state) for model in index], [("dlrm", "READY")])
            with self.assertRaisesRegex(InferenceServerException, "--follow_ms"):
                client.load_model("dlrm")
            with self.assertRaisesRegex(InferenceServerException, 'there is "dlrm"'):
                client.get_model_metadata("other")

            before = client.get_inference_statistics("dlrm").model_stats[0]
            price, user, item = self.features()
            inputs = [triton_grpc.InferInput("user", [LINES], "INT64"),
                      triton_grpc.InferInput("item", [LINES, 1], "INT64"),
                      triton_grpc.InferInput("dense", [LINES, 1], "FP32")]
            inputs[0].set_data_from_numpy(user)
            inputs[1].set_data_from_numpy(item.reshape(-1, 1))
            inputs[2].set_data_from_numpy(price)
            for outputs in ([triton_grpc.InferRequestedOutput("logits")], None):
                result = client.infer("dlrm", inputs, outputs=outputs, request_id="t",
                                      model_version=metadata.versions[0])
                logits = result.as_numpy("logits")
                self.assertEqual(logits.shape, (LINES, 1))
                self.assertEqual(bits(logits[:, 0]), bits(self.logits))
                self.assertEqual(result.get_response().id, "t")
            half = triton_grpc.InferInput("dense", [LINES, 1], "FP16")
            half.set_data_from_numpy(price.astype(numpy.float16))
            result = client.infer("dlrm", [*inputs[:2], half])
            self.assertEqual(bits(result.as_numpy("logits")[:, 0]), bits(self.logits))
            lines = triton_grpc.InferInput("lines", [LINES], "BYTES")
            lines.set_data_from_numpy(numpy.array(self.lines, dtype=object))
            result = client.infer("dlrm", [lines])
            self.assertEqual(bits(result.as_numpy("logits")[:, 0]), bits(self.logits))

            inputs[0].set_data_from_numpy(numpy.array([100] * LINES, dtype=numpy.int64))
            with self.assertRaisesRegex(InferenceServerException, "key 100 is not in"):
                client.infer("dlrm", inputs)
            after = client.get_inference_statistics().model_stats[0]
            for part, count in (("success", 4), ("fail", 1)):
                self.assertEqual(getattr(after.inference_stats, part).count -
                                 getattr(before.inference_stats, part).count, count)
            self.assertEqual(after.inference_count - before.inference_count, 4 * LINES)

    def test_numbers_that_are_no_bytes(self):
        request = service_pb2.ModelInferRequest(model_name="dlrm")
        for name, column in zip(("user", "item"), self.features()[1:]):
            tensor = request.inputs.add(name=name, datatype="INT64", shape=[LINES])
            tensor.contents.int64_contents.extend(column.tolist())
        dense = request.inputs.add(name="dense", datatype="FP32", shape=[LINES, 1])
        dense.contents.fp32_contents.extend(self.features()[0][:, 0].tolist())
        with grpc.insecure_channel(self.grpc_address) as channel:
            stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
            reply = stub.ModelInfer(request, timeout=60)
            self.assertEqual([output.name for output in reply.outputs], ["scores", "logits"])
            self.assertEqual(bits(reply.outputs[1].contents.fp32_contents), bits(self.logits))
            dense.shape[0] += 1
            with self.assertRaises(grpc.RpcError) as caught:
                stub.ModelInfer(request, timeout=60)
            self.assertEqual(caught.exception.code(), grpc.StatusCode.INVALID_ARGUMENT)
            self.assertIn('tensor "dense": 120 elements', caught.exception.details())


if __name__ == "__main__":
    unittest.main()
