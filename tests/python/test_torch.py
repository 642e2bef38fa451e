"""Tables in a torch model: the rows that numpy steps give, on any way that a batch takes."""

import copy
import gc
import io
import tempfile
import threading
import unittest
import unittest.mock
import warnings
import weakref

import numpy as np
from torch_or_skip import DEVICE, WHERE, array, in_host_memory, tiers, torch

import hotrow
import hotrow.torch
from hotrow.torch.features import encode

DIM = 4
NAMES = ["item", "seen", "played"]


def make(kind=hotrow.torch.EmbeddingCollection, **changes):
    arguments = dict(store=hotrow.Memory("16MiB"), max_batch_size=64, seed=3, **tiers("8MiB"))
    arguments.update(changes)
    return kind(
        [
            hotrow.Table("items", DIM, ["item", "seen"], optimizer=hotrow.Adam(lr=0.1)),
            hotrow.Table("plays", 3, ["played"], pooling="none", optimizer=hotrow.Sgd(lr=0.5)),
        ],
        **arguments,
    )


def batch_of(seed, size=6):
    """seen: two ids for each sample; played: any number."""
    random = torch.Generator().manual_seed(seed)

    def ids(*shape):
        return torch.randint(0, 40, shape, generator=random)

    lengths = torch.randint(0, 4, (size,), generator=random)
    return {"item": ids(size), "seen": ids(size, 2), "played": (ids(int(lengths.sum())), lengths)}


class Keyed:
    """What of KeyedJaggedTensor is used."""

    def __init__(self, batch, names, offsets=False):
        parts = [self.part(batch, name) for name in names]
        self._names = names
        self._values = torch.cat([values for values, _ in parts])
        self._lengths = torch.cat([lengths for _, lengths in parts])
        self._offsets = torch.cat([torch.zeros(1, dtype=torch.int64), self._lengths.cumsum(0)])
        if offsets:
            self._lengths = None

    @staticmethod
    def part(batch, name):
        ids = batch[name]
        if isinstance(ids, tuple):
            return ids
        hotness = ids.shape[1] if ids.ndim == 2 else 1
        return ids.reshape(-1), torch.full((len(ids),), hotness)

    def keys(self):
        return self._names

    def values(self):
        return self._values

    def lengths_or_none(self):
        return self._lengths

    def offsets(self):
        return self._offsets


class Model(torch.nn.Module):
    def __init__(self, tables, seed=0):
        super().__init__()
        self.tables = tables
        torch.manual_seed(seed)
        self.head = torch.nn.Linear(2 * DIM, 1).to(WHERE)
        self.plays = torch.nn.Linear(3, 1).to(WHERE)

    def forward(self, batch):
        vectors = self.tables(batch)
        plays = torch.tanh(self.plays(vectors["played"])).sum()
        return torch.tanh(self.head(vectors.pooled)).sum() + plays


def train(model, batches, form=lambda batch: batch, forward=None):
    """Returns the losses and the tables' hash."""
    forward = model if forward is None else forward
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    losses = []
    for batch in batches:
        loss = forward(form(batch))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses, model.tables.digest()["hash"]


def trained(count=3, **arguments):
    with make() as tables:
        return train(Model(tables), [batch_of(seed) for seed in range(count)], **arguments)


class DatasetTest(unittest.TestCase):
    def test_batches_of_the_readers_are_tensors_and_train(self):
        data = hotrow.Data("synthetic:tables=2,rows=50,samples=40,dense=3", seed=1)
        names = [feature["name"] for feature in data.features]
        dataset = hotrow.torch.Dataset(data, 16)
        self.assertEqual(len(dataset), 3)
        loader = torch.utils.data.DataLoader(dataset, batch_size=None)
        first, second = list(loader), list(loader)  # two epochs
        self.assertEqual([len(labels) for _, _, labels in first], [16, 16, 8])
        ids, dense, labels = first[0]
        self.assertEqual(list(ids), names)
        self.assertEqual((ids[names[1]].shape, dense.shape, labels.shape),
                         ((16,), (16, 3), (16, 1)))
        dataset.go_on(epoch=1, first_sample=16)
        self.assertTrue(torch.equal(next(iter(dataset))[1], second[1][1]))
        with self.assertRaisesRegex(ValueError, "num_workers=0"):
            next(iter(torch.utils.data.DataLoader(dataset, batch_size=None, num_workers=1)))

        with hotrow.torch.EmbeddingCollection(
            [hotrow.Table(name, 2) for name in names], feature_order=names,
            store=hotrow.Memory("16MiB"), max_batch_size=16, prefetch_depth=1,
        ) as tables:
            for ids, _, _ in hotrow.torch.prefetch(dataset, tables, depth=1):
                tables(ids).pooled.sum().backward()
            self.assertEqual(tables.steps, 3)

    def test_bags_and_weights(self):
        with tempfile.TemporaryDirectory() as folder:
            ids = hotrow.Bags(np.array([1, 2, 3]), np.array([2, 0, 1]),
                              weights=np.array([0.5, 1, 2], np.float32))
            batch = {"item": ids, "user": np.array([7, 8, 9]), "click": np.array([0, 1, 1])}
            packed = hotrow.pack(batch, folder + "/packed", ["item", "user"], [], ["click"])
            features, _, _ = next(iter(hotrow.torch.Dataset(packed, 3)))
            item = features["item"]
            order = [int(user) - 7 for user in features["user"].values]
            self.assertEqual(item.lengths.tolist(), [[2, 0, 1][i] for i in order])
            self.assertEqual(sorted(item.weights.tolist()), [0.5, 1, 2])


class StepsTest(unittest.TestCase):
    @in_host_memory
    def test_batches_of_equal_bags_and_others_in_turns(self):
        """Equal ones take their own way, whose memory is that of the others."""
        with make() as tables:
            train(Model(tables), [batch_of(seed) for seed in range(3)])
            tables.eval()
            for size, hotness, dtype in [
                (6, None, torch.int64), (6, 2, torch.int64), (5, 2, torch.int64),
                (6, None, torch.int32), (6, None, torch.int64), (0, None, torch.int64),
            ]:
                shape = (size,) if hotness is None else (size, hotness)
                ids = {
                    name: torch.randint(0, 40, shape, dtype=dtype) for name in NAMES
                }
                flat = {
                    name: hotrow.Bags(
                        each.numpy().reshape(-1), np.full(size, hotness or 1, dtype=np.int64)
                    )
                    for name, each in ids.items()
                }
                for batch in (ids, {**ids, "played": (ids["played"].reshape(-1),
                                                      torch.full((size,), hotness or 1))}):
                    ours, plain = tables(batch), tables.collection.evaluate(flat)
                    for name in NAMES:
                        np.testing.assert_array_equal(ours[name].numpy(), plain[name])
            with self.assertRaisesRegex(ValueError, "samples"):
                tables({**ids, "item": torch.zeros(3, dtype=torch.int64)})

    @in_host_memory
    def test_a_backward_moves_rows_as_an_update_does(self):
        batch = batch_of(0)
        with make() as tables, make(hotrow.EmbeddingCollection) as plain:
            step = plain.prefetch(
                {
                    "item": batch["item"].numpy(),
                    "seen": batch["seen"].numpy(),
                    "played": tuple(part.numpy() for part in batch["played"]),
                }
            )
            expected = step.lookup()
            out = tables(batch)
            np.testing.assert_array_equal(out.pooled.detach().numpy(), expected.pooled)
            np.testing.assert_array_equal(out["played"].detach().numpy(), expected["played"])
            self.assertEqual(out["seen"].shape, (6, DIM))
            self.assertEqual(list(out), NAMES)
            self.assertEqual(out.to_dict().keys(), set(NAMES))
            random = np.random.default_rng(1)
            gradient = expected.empty_like()
            gradient.pooled[:] = random.normal(size=gradient.pooled.shape)
            gradient["played"][:] = random.normal(size=gradient["played"].shape)
            step.update(gradient)
            loss = (out.pooled * torch.from_numpy(gradient.pooled)).sum()
            loss = loss + (out["played"] * torch.from_numpy(gradient["played"])).sum()
            self.assertEqual(tables.steps, 0)
            loss.backward()
            self.assertEqual(tables.steps, 1)
            self.assertEqual(tables.digest(), plain.digest())

    def test_every_form_of_a_batch_trains_the_same_rows(self):
        expected = trained()

        def offsets_of(lengths):
            return torch.cat([torch.zeros(1, dtype=torch.int64), lengths.cumsum(0)])

        def bags(batch):
            values, lengths = batch["played"]
            return {**batch, "played": hotrow.Bags(values, offsets=offsets_of(lengths))}

        def nested(batch):
            values, lengths = batch["played"]
            return {
                **batch, "played": torch.nested.nested_tensor_from_jagged(
                    values, offsets_of(lengths)
                )
            }

        def columns(batch):  # as those of a matrix of ids lie
            seen = torch.stack([batch["item"], *batch["seen"].T], dim=1)
            return {**batch, "item": seen[:, 0], "seen": seen[:, 1:], "dense": torch.ones(6, 2)}

        forms = {
            "bags": bags,
            "nested": nested,
            "columns": columns,
            "int32": lambda batch: {**batch, "seen": batch["seen"].int()},
            "keyed": lambda batch: Keyed(batch, NAMES),
            "keyed by offsets": lambda batch: Keyed(batch, NAMES, offsets=True),
            "keyed in another order": lambda batch: Keyed(
                {**batch, "other": batch["item"]}, ["played", "other", "seen", "item"]
            ),
        }
        for name, form in forms.items():
            with self.subTest(name):
                self.assertEqual(trained(form=form), expected)

    def test_unpooled_rows_as_a_jagged_tensor(self):
        batch = batch_of(0)
        values, lengths = batch["played"]
        offsets = torch.nn.functional.pad(lengths.cumsum(0), (1, 0))
        nested = torch.nested.nested_tensor_from_jagged(values, offsets)
        forms = [
            batch["played"], (values, lengths.int()), hotrow.Bags(values, offsets=offsets), nested
        ]
        gradient = torch.arange(3.0 * len(values), device=WHERE).view(-1, 3)
        with make() as tables:
            (2 * tables(batch)["played"]).backward(gradient)
            expected = tables.digest()
        for ids in forms:
            with make() as tables:
                rows = tables({**batch, "played": ids})["played"]
                jagged = hotrow.torch.jagged(rows, ids)
                self.assertEqual([len(part) for part in jagged.unbind()], lengths.tolist())
                self.assertTrue(torch.equal(jagged.values(), rows))
                (2 * jagged).values().backward(gradient)
                self.assertEqual(tables.digest(), expected)
        rows = torch.ones(len(values), 3)
        both = [hotrow.torch.jagged(rows, ids) for ids in (nested, forms[2])]
        self.assertTrue(torch.equal((both[0] + both[1]).values(), 2 * rows))  # equally long
        pairs = hotrow.torch.jagged(torch.ones(6, 3), torch.zeros(3, 2).long())
        self.assertEqual([len(part) for part in pairs.unbind()], [2, 2, 2])
        with self.assertRaisesRegex(ValueError, "jagged: 7 rows are not those of these ids"):
            hotrow.torch.jagged(torch.ones(7, 3), torch.zeros(3, 2).long())

    def test_keyed_batches_whose_parts_do_not_fit_are_refused(self):
        order = ["played", "seen", "item"]
        with make() as tables:
            for change, message in (
                (dict(_lengths=torch.zeros(18, dtype=torch.int64)), "lengths: are of 0 values"),
                (dict(_lengths=torch.ones(19, dtype=torch.int64),
                      _values=torch.zeros(19, dtype=torch.int64)), "has 19 bags"),
            ):
                batch = Keyed(batch_of(0), order)
                vars(batch).update(change)
                with self.subTest(message), self.assertRaisesRegex(ValueError, message):
                    tables(batch)

    def test_a_feature_may_have_no_ids(self):
        with make() as tables:
            none = torch.empty(0, dtype=torch.int64), torch.zeros(6, dtype=torch.int64)
            out = tables({**batch_of(0), "played": none})
            self.assertEqual(out["played"].shape, (0, 3))
            (out.pooled.sum() + out["played"].sum()).backward()
            self.assertEqual(tables.steps, 1)

    def test_evaluation_changes_nothing(self):
        with make() as tables:
            model = Model(tables)
            train(model, [batch_of(0)])
            before = tables.digest()
            model.eval()
            out = tables(batch_of(1))
            self.assertFalse(out.pooled.requires_grad)
            model.train()
            with torch.no_grad():
                again = tables(batch_of(1))
            self.assertTrue(torch.equal(out.pooled, again.pooled))
            self.assertTrue(torch.equal(out["played"], again["played"]))
            dropped = tables(batch_of(1))  # no backward
            self.assertTrue(torch.equal(out.pooled, dropped.pooled))
            del dropped
            self.assertEqual(tables.digest(), before)
            self.assertEqual(tables.steps, 1)

    @in_host_memory
    def test_another_default_device_is_not_that_of_the_vectors(self):
        batch = batch_of(0)
        with make() as tables, make() as plain:
            plain(batch).pooled.sum().backward()
            with torch.device("meta"):
                tables(batch).pooled.sum().backward()
                with torch.no_grad():
                    out = tables(batch)
            self.assertEqual(out.pooled.device.type, "cpu")
            self.assertEqual(tables.digest(), plain.digest())

    def test_tables_that_are_dropped_between_lookup_and_backward_are_freed(self):
        tables = make()
        out = tables(batch_of(0))
        gone = weakref.ref(tables._passes)
        del tables, out
        gc.collect()
        self.assertIsNone(gone())

    def test_a_backward_that_comes_too_late_is_refused(self):
        with make() as tables:
            first = tables(batch_of(0))
            second = tables(batch_of(1))
            with self.assertRaisesRegex(RuntimeError, "looked up again before its backward"):
                first.pooled.sum().backward()
            loss = second.pooled.sum()
            loss.backward(retain_graph=True)
            with self.assertRaisesRegex(RuntimeError, "updated already"):
                loss.backward()
            self.assertEqual(tables.steps, 1)

    def test_a_feature_without_a_gradient_does_not_move(self):
        with make() as tables:
            out = tables(batch_of(0))
            out.pooled.sum().backward()
            rows, found = tables.collection.read_rows("plays", batch_of(0)["played"][0].numpy())
            self.assertTrue(found.all())
            np.testing.assert_array_equal(rows, array(out["played"]))

    def test_schedules(self):
        with make() as tables:
            schedule = torch.optim.lr_scheduler.StepLR(tables.optimizer, 1, gamma=0.5)
            ids = {**batch_of(0), "played": (torch.tensor([1]), torch.tensor([1, 0, 0, 0, 0, 0]))}
            row = np.array([1], dtype=np.uint64)
            for factor in (1.0, 0.5, 0.25):
                before, _ = tables.collection.read_rows("plays", row)
                tables(ids)["played"].sum().backward()
                after, _ = tables.collection.read_rows("plays", row)
                np.testing.assert_allclose(before - after, np.full((1, 3), 0.5 * factor), rtol=1e-5)
                schedule.step()

    def test_autocast(self):
        with make() as tables:
            with torch.autocast(WHERE, dtype=torch.bfloat16):
                out = tables(batch_of(0))
                self.assertEqual(out.pooled.dtype, torch.bfloat16)
                loss = out.pooled.sum() + out["played"].sum()
            before = array(out["played"].float())
            loss.backward()
            rows, _ = tables.collection.read_rows("plays", batch_of(0)["played"][0].numpy())
            self.assertTrue((rows < before - 0.4).all())

    def test_a_grad_scaler(self):
        class Scaler:  # as torch.amp.GradScaler, which older versions of torch make for CUDA alone
            def is_enabled(self):
                return True

            def get_scale(self):
                return 1024.0

        with make() as scaled, make() as plain:
            scaled.set_grad_scaler(Scaler())
            (scaled(batch_of(0)).pooled.square().sum() * 1024).backward()
            plain(batch_of(0)).pooled.square().sum().backward()
            self.assertEqual(scaled.digest(), plain.digest())
        with make() as plain, make() as tables:
            tables.set_grad_scaler(unittest.mock.Mock(**{"is_enabled.return_value": False}))
            for each in (plain, tables):  # as without one, also where gradients are not finite
                each(batch_of(0)).pooled.sum().backward()
                before = each.digest()
                if DEVICE != "cpu":  # whose gradients nobody looks at
                    continue
                with self.assertRaisesRegex(ValueError, r"gradient: pooled\[0, 0\] is -?(nan|inf)"):
                    (each(batch_of(0)).pooled.sum() * float("nan")).backward()
                self.assertEqual(each.digest(), before)
            self.assertEqual(tables.digest(), plain.digest())
        with make() as tables:
            tables.set_grad_scaler(Scaler())
            tables(batch_of(0)).pooled.sum().backward()
            before = tables.digest(), tables.steps
            for seed in (0, 1):  # rows that are there, and new ones
                (tables(batch_of(seed))["played"].sum() * float("inf")).backward()
            with tables.no_update():
                (tables(batch_of(1))["played"].sum() * float("inf")).backward()
            tables(batch_of(0))["played"].sum().backward()
            self.assertEqual((tables.digest(), tables.steps), before)
            tables(batch_of(1)).pooled.sum().backward()
            self.assertEqual(tables.steps, before[1] + 1)

    def test_half_precision_with_torchs_own_scaler(self):
        if not hasattr(torch.amp, "GradScaler"):
            self.skipTest("needs torch 2.3")
        batches = [batch_of(seed) for seed in range(6)]
        plain, _ = trained(count=6)
        with make() as tables:
            model = Model(tables)
            optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
            scaler = torch.amp.GradScaler(WHERE, init_scale=2.0**10, growth_interval=2)
            tables.set_grad_scaler(scaler)
            losses = []
            for number, batch in enumerate(batches):
                optimizer.zero_grad()
                with torch.autocast(WHERE, dtype=torch.float16):
                    loss = model(batch)
                before = tables.digest()["hash"], model.head.weight.detach().clone()
                factor = float("inf") if number == 3 else 1.0
                scaler.scale(loss * factor).backward()
                scaler.step(optimizer)
                scaler.update()
                losses.append(loss.item())
                if number == 3:  # the dense step is left out, and that of the rows
                    self.assertTrue(torch.equal(model.head.weight, before[1]))
                    self.assertEqual((tables.digest()["hash"], tables.steps), (before[0], number))
            np.testing.assert_allclose(losses[:4], plain[:4], rtol=0.05, atol=0.05)
            self.assertTrue(np.isfinite(losses).all())
            self.assertNotEqual(scaler.get_scale(), 2.0**10)

    def test_rows_are_in_no_state_dict_and_no_optimizer(self):
        with make() as tables:
            model = Model(tables)
            self.assertEqual(list(tables.parameters()), [])
            self.assertEqual(
                sorted(model.state_dict()),
                ["head.bias", "head.weight", "plays.bias", "plays.weight"],
            )
            before = tables.digest()
            model.load_state_dict(model.state_dict())
            self.assertEqual(tables.digest(), before)

    def test_a_state_dict_without_its_rows_is_told(self):
        with make() as tables, make() as other:
            tables(batch_of(0)).pooled.sum().backward()
            buffer = io.BytesIO()
            torch.save(Model(tables).state_dict(), buffer)
            buffer.seek(0)
            state = torch.load(buffer, weights_only=True)
            with self.assertWarnsRegex(UserWarning, "no rows.*after 0 updates.*after 1.*restore"):
                Model(other).load_state_dict(state)
            with warnings.catch_warnings():
                warnings.simplefilter("error")
                Model(tables).load_state_dict(state)
            with self.assertWarnsRegex(UserWarning, "no rows"):
                Model(other).load_state_dict(dict(state))  # without what torch keeps beside it

    def test_copies_and_traces_are_refused_with_a_remedy(self):
        with make() as tables:
            model = Model(tables)
            with self.assertRaisesRegex(TypeError, "AveragedModel.model.top."):
                torch.optim.swa_utils.AveragedModel(model)
            twin = copy.deepcopy(model, {id(tables): tables})
            self.assertIs(twin.tables, tables)
            self.assertIsNot(twin.head, model.head)
            with self.assertRaisesRegex(NotImplementedError, "torch.compile"):
                torch.jit.trace(tables, ({"item": torch.arange(3)},), strict=False)

    def test_a_lookup_within_no_update_keeps_its_gradient_or_is_refused(self):
        with make() as tables:
            with tables.no_update():
                first = tables(batch_of(0)).pooled
            with self.assertRaisesRegex(RuntimeError, "no_update.*has had no backward"):
                tables(batch_of(1))
            del first  # then its backward cannot come
            tables(batch_of(1)).pooled.sum().backward()
            self.assertEqual(tables.steps, 1)

    def test_a_forward_alone_does_not_end_prefetching(self):
        with make(prefetch_depth=1) as tables:
            tables(batch_of(9))
            for batch in hotrow.torch.prefetch([batch_of(seed) for seed in range(3)], tables):
                tables(batch).pooled.sum().backward()
            self.assertEqual(tables.steps, 3)

    def test_processes_of_a_loader_leave_the_tables_alone(self):
        with make(prefetch_depth=1) as tables:
            class Samples(torch.utils.data.Dataset):
                owner = tables  # which the processes have by their fork

                def __len__(self):
                    return 8

                def __getitem__(self, index):
                    return {name: ids for name, ids in batch_of(index).items()}

            loader = torch.utils.data.DataLoader(
                Samples(), batch_size=None, num_workers=2, multiprocessing_context="fork"
            )
            for batch in hotrow.torch.prefetch(loader, tables):
                tables(batch).pooled.sum().backward()
            self.assertEqual(tables.steps, 8)

    def test_a_schedule_of_the_model_and_one_of_the_tables_are_apart(self):
        with make() as tables:
            dense = torch.optim.SGD(Model(tables).parameters(), lr=0.5)
            schedule = torch.optim.lr_scheduler.CosineAnnealingLR(dense, T_max=4)
            dense.step()
            schedule.step()
            self.assertEqual(tables.optimizer.param_groups[0]["lr"], 1.0)
            self.assertNotEqual(dense.param_groups[0]["lr"], 0.5)
            tables.optimizer.param_groups[0]["lr"] = float("nan")
            with self.assertRaisesRegex(ValueError, "lr_factor|learning_rate_factor"):
                tables(batch_of(0)).pooled.sum().backward()

    def test_refusals(self):
        batch = batch_of(0)
        weights = torch.ones(6, requires_grad=True)
        padded = torch.arange(24).reshape(6, 4)
        holes = torch.nested.narrow(
            padded, 1, torch.zeros(6).long(), torch.tensor([1, 2, 3, 1, 2, 4]), torch.jagged
        )
        strided = torch.nested.as_nested_tensor(list(padded), layout=torch.strided)
        wrong = {
            "feature 'item' is missing": {"seen": batch["seen"]},
            "'item': is list": {**batch, "item": [1, 2, 3]},
            "values of feature 'item'|feature 'item'": {**batch, "item": batch["item"].double()},
            "feature 'seen': has 5 samples": {**batch, "seen": batch["seen"][:5]},
            "weights of feature 'item': require a gradient": {
                **batch, "item": hotrow.Bags(batch["item"], torch.ones(6).long(), None, weights)
            },
            "nested tensor.*no holes": {**batch, "played": holes},
            "nested tensor.*layout": {**batch, "played": strided},
            "is int, must be a dict": 7,
            "hotrow.torch.Dataset": hotrow.Jagged(1, np.ones(2, int), np.ones(2, int)),
        }
        with make() as tables:
            for text, features in wrong.items():
                with self.subTest(text), self.assertRaisesRegex((ValueError, TypeError), text):
                    tables(features)
            tables(batch).pooled.sum().backward()
            self.assertEqual(tables.steps, 1)
        with self.assertRaisesRegex(RuntimeError, "closed"):
            tables(batch)
        with self.assertRaisesRegex(TypeError, "seed"):
            hotrow.torch.EmbeddingCollection(tables.collection, seed=1)


class OptionalFeaturesTest(unittest.TestCase):
    def test_a_batch_may_lack_them(self):
        batch = batch_of(0)
        lacking = {name: ids for name, ids in batch.items() if name != "played"}
        zeros = torch.zeros(len(batch["item"]), dtype=torch.int64)
        nobody = (zeros[:0], zeros)
        with make() as tables, make(optional_features=["played"], prefetch_depth=1) as towers:
            with self.assertRaisesRegex(ValueError, "'played' is missing"):
                tables(lacking)
            expected = train(Model(tables), [{**batch, "played": nobody}, batch])
            ahead = hotrow.torch.prefetch([lacking, batch], towers)
            self.assertEqual(train(Model(towers), ahead), expected)

    def test_several_lookups_are_one_step(self):
        """Their rows are those of one batch with all samples."""
        one, two = batch_of(0, 6), batch_of(1, 4)
        values, lengths = two["played"]
        offsets = torch.cat([torch.zeros(1, dtype=torch.int64), lengths.cumsum(0)])
        two["played"] = hotrow.Bags(values, offsets=offsets)
        towers = [{name: one[name] for name in ("item", "seen")}, {"played": two["played"]}]
        optional = ["item", "seen", "played"]
        with make(optional_features=optional, prefetch_depth=1) as tables, make() as plain:
            for each in hotrow.torch.prefetch([towers], tables, features=lambda batch: batch):
                users, plays = tables(each)
                self.assertEqual(users.pooled.shape, (6, 2 * DIM))
                self.assertEqual(plays["played"].shape, (int(lengths.sum()), 3))
                (users.pooled.square().sum() + plays["played"].sum()).backward()
            none = lengths[:0]
            whole = {"item": (one["item"], torch.tensor([1] * 6 + [0] * 4)),
                     "seen": (one["seen"].reshape(-1), torch.tensor([2] * 6 + [0] * 4)),
                     "played": (values, torch.cat([torch.zeros(6, dtype=torch.int64), lengths]))}
            out = plain(whole)
            (out.pooled.square().sum() + out["played"].sum()).backward()
            self.assertEqual(tables.digest(), plain.digest())
            self.assertEqual(tables.steps, 1)
            self.assertEqual(len(tables.eval()([{"item": none}, one])[1]["item"]), 6)
            wide = torch.zeros((3, 0), dtype=torch.int64)
            self.assertEqual(len(tables([{"item": wide}, one])[0]["item"]), 3)
            with self.assertRaisesRegex(TypeError, "several types"):
                tables([{"item": one["item"]}, {"item": one["item"].int()}])
            with self.assertRaisesRegex(TypeError, "must hold dicts"):
                tables([])


@in_host_memory
class DevicesTest(unittest.TestCase):
    """As far as they can be tested without a GPU: where outputs go, and what cannot be."""

    def test_a_batch_is_on_one_device(self):
        batch = batch_of(0)
        values, lengths = batch["played"]
        weights = torch.ones(len(values))
        mixed = {
            "values of feature 'seen'": {**batch, "seen": batch["seen"].to("meta")},
            "values of feature 'played'": {**batch, "played": (values.to("meta"), lengths)},
            "lengths of feature 'played'": {**batch, "played": (values, lengths.to("meta"))},
            "weights of feature 'played'": {
                **batch, "played": hotrow.Bags(values, lengths, None, weights.to("meta"))
            },
        }
        nowhere = {
            name: tuple(part.to("meta") for part in ids)
            if isinstance(ids, tuple) else ids.to("meta")
            for name, ids in batch.items()
        }
        with make() as tables:
            for call in (tables, tables.eval()):
                for text, features in mixed.items():
                    with self.subTest(text), self.assertRaisesRegex(
                        ValueError, f"{text}: is on meta, .* on cpu; .* one device"
                    ):
                        call(features)
                with self.assertRaisesRegex(ValueError, "'item': is on the device meta.* no data"):
                    call(nowhere)
            tables.train()
            tables(batch).pooled.sum().backward()
            self.assertEqual(tables.steps, 1)

    def test_outputs_are_where_the_model_looks_up(self):
        """Batches are prefetched as the loader gives them, and moved by the loop."""
        with make(prefetch_depth=1) as tables:
            for batch in hotrow.torch.prefetch([batch_of(0)], tables):
                moved = {**batch, "item": batch["item"].to("meta")}
                with unittest.mock.patch("hotrow.torch.passes.same", return_value=True):
                    _, outputs = tables._passes.lookup(encode(moved, NAMES))
                self.assertEqual([out.device.type for out in outputs], ["meta"] * 2)

    def test_what_a_compiler_sees_of_ids_on_a_gpu(self):
        from torch._subclasses.fake_tensor import FakeTensorMode

        # Without autograd, which asks the driver for a stream.
        with make() as tables, FakeTensorMode(), torch.no_grad():
            ids = torch.empty(6, dtype=torch.int64, device="cuda")
            seen = torch.empty(6, 2, dtype=torch.int64, device="cuda")
            encoded = ([ids, seen, ids], [ids], [], [0, 0, 1], [])
            anchor = torch.zeros((), requires_grad=True)
            token, pooled, played = torch.ops.hotrow.lookup(anchor, tables._number, *encoded)
            self.assertEqual(token.device.type, "cpu")
            for out, shape in ((pooled, (6, 2 * DIM)), (played, (6, 3))):
                self.assertEqual((out.device.type, out.dtype), ("cuda", torch.float32))
                self.assertEqual(tuple(out.shape), shape)
            moved = torch.ops.hotrow.update(anchor, tables._number, token, [pooled, played])
            self.assertEqual(moved.device.type, "cpu")
            out = torch.ops.hotrow.evaluate(tables._number, *encoded)
            self.assertEqual([part.device.type for part in out], ["cuda"] * 2)

    def test_gradients_may_come_from_another_thread(self):
        """As autograd's for a GPU do."""
        with make() as tables, make() as plain:
            for each in (tables, plain):
                loss = each(batch_of(0)).pooled.square().sum()
                if each is plain:
                    loss.backward()
                    continue
                thread = threading.Thread(target=loss.backward)
                thread.start()
                thread.join()
            self.assertEqual(tables.steps, 1)
            self.assertEqual(tables.digest(), plain.digest())


    @unittest.skipUnless(WHERE == "cuda", "CUDA graphs need a GPU")
    def test_the_dense_part_may_be_a_cuda_graph(self):
        """What surrounds tables is captured once; look-ups and updates happen between replays."""
        losses = []
        for graphed in (False, True):
            torch.manual_seed(3)
            dense = torch.nn.Sequential(
                torch.nn.Linear(2 * DIM, 8), torch.nn.ReLU(), torch.nn.Linear(8, 1)
            ).to(WHERE)
            with make(prefetch_depth=1) as tables:
                optimizer = torch.optim.SGD(dense.parameters(), lr=0.1)
                sample = torch.zeros(6, 2 * DIM, device=WHERE, requires_grad=True)
                call = torch.cuda.make_graphed_callables(dense, (sample,)) if graphed else dense
                for batch in hotrow.torch.prefetch([batch_of(seed) for seed in range(4)], tables):
                    optimizer.zero_grad(set_to_none=False)
                    loss = call(tables(batch).pooled).square().sum()
                    loss.backward()
                    optimizer.step()
                    losses.append(loss.item())
        np.testing.assert_allclose(losses[:4], losses[4:], rtol=1e-5)  # products may differ


class PrefetchTest(unittest.TestCase):
    def test_it_changes_no_bit(self):
        batches = [batch_of(seed) for seed in range(6)]
        expected = trained(count=6)
        for depth in (0, 1, 2):
            with make(prefetch_depth=2) as tables:
                ahead = hotrow.torch.prefetch(batches, tables, depth=depth)
                self.assertEqual(train(Model(tables), ahead), expected)

    def test_features_within_a_batch(self):
        batches = [(torch.ones(6, 2), batch_of(seed), torch.ones(6)) for seed in range(3)]
        with make(prefetch_depth=1) as tables:
            ahead = hotrow.torch.prefetch(batches, tables)
            self.assertEqual(
                train(Model(tables), ahead, form=lambda batch: batch[1]), trained(count=3)
            )
            keyed = [(7, Keyed(batch_of(0), NAMES))]
            ahead = hotrow.torch.prefetch(keyed, tables, features=lambda batch: batch[1])
            train(Model(tables), ahead, form=lambda batch: batch[1])
            with self.assertRaisesRegex(TypeError, "features="):
                next(hotrow.torch.prefetch([(1, 2)], tables))
            with self.assertRaisesRegex(ValueError, "prefetch_depth=1"):
                hotrow.torch.prefetch(batches, tables, depth=2)

    def test_batches_that_are_passed_over_change_nothing(self):
        batches = [batch_of(seed) for seed in range(6)]
        with make() as tables:
            expected = train(Model(tables), [batches[1], batches[3]])
        with make(prefetch_depth=2) as tables:
            def every_other():
                for number, batch in enumerate(hotrow.torch.prefetch(batches, tables, depth=2)):
                    if number == 4:
                        break
                    if number % 2:
                        yield batch
            self.assertEqual(train(Model(tables), every_other()), expected)
            tables.eval()
            self.assertEqual(len(list(hotrow.torch.prefetch(batches, tables, depth=2))), 6)
            self.assertEqual(tables.digest()["hash"], expected[1])

    def test_other_ids_than_those_prefetched_are_refused(self):
        with make(prefetch_depth=2) as tables:
            ahead = hotrow.torch.prefetch([batch_of(0), batch_of(1)], tables, depth=2)
            batch = next(ahead)
            with self.assertRaisesRegex(RuntimeError, "comes next"):
                tables(batch_of(1))
            copied = {**batch, "item": batch["item"].clone()}  # the same ids elsewhere
            tables(copied).pooled.sum().backward()
            self.assertEqual(tables.steps, 1)
            batch = next(ahead)
            batch["item"] += 1
            with self.assertRaisesRegex(RuntimeError, "overwritten"):
                tables(batch)

    def test_after_a_lookup_that_failed_the_next_batch_trains(self):
        batches = [batch_of(seed) for seed in range(3)]
        with make() as tables:
            expected = train(Model(tables), [batches[0], batches[2]])
        with make(prefetch_depth=1) as tables:
            def fails_once():
                for number, batch in enumerate(hotrow.torch.prefetch(batches, tables)):
                    if number == 1:
                        with unittest.mock.patch.object(hotrow.Step, "_lookup", side_effect=OSError):
                            with self.assertRaises(OSError):
                                tables(batch)
                        continue
                    yield batch
            self.assertEqual(train(Model(tables), fails_once()), expected)


class AccumulationTest(unittest.TestCase):
    BATCHES = [batch_of(0, 3), batch_of(1, 5), batch_of(2, 4), batch_of(3, 6)]

    def one_step(self, model, batches):
        for batch in batches:
            model(batch).backward()

    def whole(self, batches):
        """The same samples as one batch."""
        lengths = torch.cat([batch["played"][1] for batch in batches])
        return {
            "item": torch.cat([batch["item"] for batch in batches]),
            "seen": torch.cat([batch["seen"] for batch in batches]),
            "played": (torch.cat([batch["played"][0] for batch in batches]), lengths),
        }

    def test_several_passes_move_rows_once_by_their_sum(self):
        with make() as tables:
            model = Model(tables)
            for first in (0, 2):
                self.one_step(model, [self.whole(self.BATCHES[first : first + 2])])
            expected = tables.digest()
        with make(prefetch_depth=1) as tables:
            model = Model(tables)
            self.one_step(model, hotrow.torch.prefetch(self.BATCHES, tables, accumulate=2))
            self.assertEqual(tables.steps, 2)
            self.assertEqual(tables.digest(), expected)
        with make() as tables:
            model = Model(tables)
            for first in (0, 2):
                with tables.no_update():
                    self.one_step(model, [self.BATCHES[first]])
                    self.assertEqual(tables.steps, first // 2)
                self.one_step(model, [self.BATCHES[first + 1]])
            self.assertEqual(tables.digest(), expected)

    def test_gradients_may_be_overwritten_while_they_wait(self):
        digests = []
        for change in (lambda gradient: gradient * 2, lambda gradient: gradient.mul_(2)):
            with make() as tables:
                gradient = torch.ones(3, 2 * DIM, device=WHERE)
                with tables.no_update():
                    tables(batch_of(0, 3)).pooled.backward(gradient)
                tables(batch_of(1, 3)).pooled.backward(change(gradient))
                digests.append(tables.digest())
        self.assertEqual(*digests)

    def test_outputs_may_be_changed_in_place(self):
        for accumulate in (1, 2):
            with make(prefetch_depth=1) as tables:
                losses = []
                for batch in hotrow.torch.prefetch(
                    self.BATCHES[:accumulate], tables, accumulate=accumulate
                ):
                    out = tables(batch)
                    losses.append(out.pooled.square().sum())  # keeps `pooled` for its backward
                    losses.append(out["played"].relu_().sum())
                sum(losses).backward()
                self.assertEqual(tables.steps, 1)

    def test_keyed_batches_too(self):
        with make(prefetch_depth=1) as tables:
            self.one_step(Model(tables), hotrow.torch.prefetch(self.BATCHES, tables, accumulate=4))
            expected = tables.digest()
        with make(prefetch_depth=1) as tables:
            keyed = [Keyed(batch, NAMES) for batch in self.BATCHES]
            self.one_step(Model(tables), hotrow.torch.prefetch(keyed, tables, accumulate=4))
            self.assertEqual(tables.digest(), expected)

    def test_batches_of_several_types_are_refused(self):
        ids = torch.arange(-1, 3)
        with hotrow.torch.EmbeddingCollection(
            [hotrow.Table("items", 4, ["item"])], store=hotrow.Memory("16MiB"), max_batch_size=64,
            prefetch_depth=1,
        ) as tables:
            with self.assertRaisesRegex(TypeError, "several types"):
                next(hotrow.torch.prefetch(
                    [{"item": ids.int()}, {"item": ids}], tables, accumulate=2
                ))

    def test_a_batch_that_is_passed_over_adds_nothing(self):
        with make() as tables:
            self.one_step(Model(tables), [self.BATCHES[0]])
            expected = tables.collection.read_rows("plays", np.arange(40))[0]
        with make(prefetch_depth=1) as tables:
            model = Model(tables)
            for number, batch in enumerate(
                hotrow.torch.prefetch(self.BATCHES, tables, accumulate=3)
            ):
                if number == 0:
                    model(batch).backward()
            self.assertEqual(tables.steps, 1)
            rows = tables.collection.read_rows("plays", np.arange(40))[0]
            np.testing.assert_array_equal(rows, expected)

    def test_a_backward_that_never_comes_is_an_error(self):
        with make(prefetch_depth=1) as tables:
            model = Model(tables)
            ahead = hotrow.torch.prefetch(self.BATCHES, tables, accumulate=2)
            model(next(ahead)).backward()
            model(next(ahead))
            with self.assertRaisesRegex(RuntimeError, "1 of the 2 batches"):
                model(next(ahead))

    def test_zero_grad_forgets_what_was_added_up(self):
        with make() as tables:
            model = Model(tables)
            self.one_step(model, [self.whole(self.BATCHES[2:])])
            expected = tables.digest()
        for zero in (
            lambda tables: tables.zero_grad(),
            lambda tables: tables.optimizer.zero_grad(),
        ):
            with make() as tables:  # an error between two passes, and all again with others
                model = Model(tables)
                with tables.no_update():
                    self.one_step(model, self.BATCHES[:2])
                zero(tables)
                with tables.no_update():
                    self.one_step(model, self.BATCHES[2:3])
                self.one_step(model, self.BATCHES[3:])
                self.assertEqual(tables.digest(), expected)
            with make(prefetch_depth=1) as tables:
                model = Model(tables)
                ahead = hotrow.torch.prefetch(self.BATCHES[:2], tables, accumulate=2)
                model(next(ahead)).backward()
                model(next(ahead))  # fails before its backward
                zero(tables)
                ahead = hotrow.torch.prefetch(self.BATCHES[2:], tables, accumulate=2)
                self.one_step(model, ahead)
                self.assertEqual(tables.digest(), expected)

    def test_zero_grad_within_a_step_spares_its_own_backward(self):
        expected = trained()
        with make() as tables:
            model, losses = Model(tables), []
            optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
            for seed in range(3):
                loss = model(batch_of(seed))
                optimizer.zero_grad()
                tables.zero_grad()
                loss.backward()
                optimizer.step()
                losses.append(loss.item())
            self.assertEqual((losses, tables.digest()["hash"]), expected)


class CompileTest(unittest.TestCase):
    def tearDown(self):
        torch._dynamo.reset()

    # Older versions of torch, for unpooled features of keyed batches.
    @torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True)
    def test_one_graph_with_the_same_bits(self):
        expected = trained(count=4)
        for form in (lambda batch: batch, lambda batch: Keyed(batch, NAMES)):
            with make(prefetch_depth=1) as tables:
                model = Model(tables)
                compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
                batches = [batch_of(seed) for seed in range(4)]
                ahead = hotrow.torch.prefetch([form(batch) for batch in batches], tables)
                self.assertEqual(train(model, ahead, forward=compiled), expected)

    def test_the_operators_are_what_they_say(self):
        """Schemas, and shapes that a compiler is told."""
        with make() as tables:
            ids = batch_of(0)
            values, lengths = ids["played"]
            encoded = ([ids["item"], ids["seen"], values], [lengths], [], [0, 0, 1], [])
            torch.library.opcheck(
                torch.ops.hotrow.evaluate.default, (tables._number, *encoded),
                test_utils=("test_schema", "test_faketensor"),
            )
            torch.library.opcheck(
                torch.ops.hotrow.lookup.default, (tables._anchor, tables._number, *encoded),
                test_utils=("test_schema", "test_autograd_registration", "test_faketensor"),
            )

    def test_what_dynamo_explains(self):
        with make() as tables:
            said = torch._dynamo.explain(Model(tables))(batch_of(0))
            self.assertEqual((said.graph_count, said.graph_break_count), (1, 0))

    def test_embeddings_are_a_pytree(self):
        with make() as tables:
            out = tables(batch_of(0))
            parts, shape = torch.utils._pytree.tree_flatten(out)
            self.assertEqual(len(parts), 2)
            again = torch.utils._pytree.tree_unflatten(parts, shape)
            self.assertTrue(torch.equal(again["seen"], out["seen"]))
            self.assertEqual(repr(again), repr(out))
            self.assertIn("EmbeddingCollection of items", repr(Model(tables)))

    def test_export_takes_the_layers_above_and_whole_models(self):
        class Top(torch.nn.Module):
            def forward(self, vectors):
                return vectors["item"].sum() + vectors["played"].sum()

        with make() as tables:
            vectors = tables.eval()(batch_of(0))
            top = torch.export.export(Top(), (vectors,))
            file = io.BytesIO()
            torch.export.save(top, file)
            file.seek(0)
            loaded = torch.export.load(file).module()
            self.assertEqual(loaded(vectors).item(), Top()(vectors).item())
            whole = torch.export.export(tables, (batch_of(0),)).module()
            self.assertTrue(torch.equal(whole(batch_of(0))["item"], vectors["item"]))

    def test_evaluation(self):
        with make() as tables:
            model = Model(tables)
            train(model, [batch_of(0)])
            model.eval()
            before = tables.digest()
            compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
            self.assertEqual(compiled(batch_of(1)).item(), model(batch_of(1)).item())
            out = torch.compile(tables, fullgraph=True, backend="aot_eager")(batch_of(1))
            self.assertTrue(torch.equal(out["item"], tables(batch_of(1))["item"]))
            self.assertEqual(tables.digest(), before)


if __name__ == "__main__":
    unittest.main()
