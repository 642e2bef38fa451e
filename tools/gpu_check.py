"""What tools/gpu_check.sh keeps of its steps: rows in a file, the JSON made of them, the table of the end.

A row: check, held (true, false, or null for what cannot be here and says why), ours, peer, unit, share and peer_share
(of the bandwidth of a copy, or of the limit that the note names), seconds that the step took, note, table (whether it is one
of those that the table shows when it holds).
"""
import argparse
import json
import os
import sys

TABLE_LINES = 40
# What the table shows of each part of gpu_bench. Everything is in the JSON.
SHOWN = ("device copy, by the driver", "host to device, page-locked", "both directions at once", "random rows, dim 128",
         "kernel reads page-locked rows, dim 128", "65536 x 479-1024", "65536 x 479-1024 padded",
         "find dim 128 load 0.90 hits 1.0", "find in place dim 128 load 0.90 hits 1.0", "insert dim 64 load 1.00 hits 0.6",
         "load factor", "lookup, dim 128", "lookup, bags of 8, dim 128", "gradient sum, dim 128", "update, dim 128, sgd",
         "update, dim 128, rowwise_adagrad", "update, dim 128, adam", "update fused with the sum, dim 128, rowwise_adagrad",
         "1048570 lookups")


def add(path, rows):
    with open(path, "a", encoding="utf-8") as out:
        for row in rows:
            out.write(json.dumps(row) + "\n")


def read_rows(path):
    if not os.path.exists(path):
        return []
    with open(path, encoding="utf-8") as lines:
        return [json.loads(line) for line in lines]


def read_json(path):
    with open(path, encoding="utf-8") as text:
        return json.load(text)


def make_row(check, held, **more):
    row = {"check": check, "held": held, "ours": None, "peer": None, "unit": "", "share": None, "peer_share": None,
           "seconds": None, "note": "", "table": True}
    row.update(more)
    return row


def one_row(a):
    held = {"yes": True, "no": False, "absent": None}[a.held]
    add(a.rows, [make_row(a.check, held, ours=a.ours, peer=a.peer, unit=a.unit, seconds=a.seconds, note=a.note)])


def share_of(figure):
    return figure["percent_of_limit"] / 100 if figure.get("percent_of_limit") else None


def note_of(figure):
    if "skipped" in figure:
        return "skipped: " + figure["skipped"]
    notes = []
    limit = figure.get("limit", "copy")
    if limit != "copy":
        notes.append("of " + limit)
    if figure["part"] == "tiers" and figure.get("tables"):
        notes.append("%d rows a table" % (figure["rows"] // figure["tables"]))
    if "target_seconds" in figure:
        notes.append("target %.1f ms" % (1e3 * figure["target_seconds"]))
    return ", ".join(notes)


def bench_rows(a):
    """Figures of gpu_bench. Each ran, and gpu_bench looked at what it gave: that is what held says."""
    report = read_json(a.report)
    rows = []
    # Several runs measure the same limits.
    known = {row["check"] for row in read_rows(a.rows)}
    for figure in report["figures"]:
        if figure["part"] + ": " + figure["name"] in known:
            continue
        shown = a.all or figure["part"] in ("tiers", "unique", "partition", "load") or any(
            figure["name"].endswith(name) for name in SHOWN) or figure.get("stage") in ("whole", "as a graph")
        row = make_row(figure["part"] + ": " + figure["name"], True, note=note_of(figure), table=bool(shown),
                       share=share_of(figure))
        if "skipped" in figure:
            row["held"] = None
        elif "median_seconds" in figure:
            if figure["unit"] == "flop":
                row["ours"], row["unit"] = figure["per_second"] * 1e-12, "TFLOP/s"
            elif figure["part"] in ("unique", "partition", "lookup", "gradient_sum", "update", "tiers", "step"):
                row["ours"], row["unit"] = figure["median_seconds"] * 1e3, "ms"
            else:
                row["ours"], row["unit"] = figure["per_second"] * 1e-9, "G " + figure["unit"] + "/s"
        else:
            row["ours"], row["unit"] = figure.get("load"), "of the ways"
        rows.append(row)
    if rows:
        rows[0]["seconds"] = a.seconds
    add(a.rows, rows)


def peer_rows(a):
    """Figures of torch_peers.py beside those of gpu_bench: the same ids, bytes counted the same way."""
    peers = read_json(a.peers)
    ours = {}
    copy = 0.0
    for path in a.reports:
        if not os.path.exists(path):
            continue
        for figure in read_json(path)["figures"]:
            if "median_seconds" not in figure:
                continue
            # Peers have neither longer bags nor an update fused with the sum.
            if "hotness" not in figure and "fused" not in figure:
                ours[figure["part"], figure.get("dim"), figure.get("optimizer")] = figure
            if figure["part"] == "copy":
                copy = max(copy, figure["per_second"])
    rows = []
    for figure in peers["figures"]:
        mine = ours.get((figure["part"], figure.get("dim"), figure.get("optimizer")))
        row = make_row("peer: " + figure["name"], figure["right"], peer=figure["median_seconds"] * 1e3, unit="ms",
                       note=figure.get("note", ""), table=figure.get("dim") != 32)
        if mine is not None:
            row["ours"] = mine["median_seconds"] * 1e3
            row["share"] = share_of(mine)
            if copy:
                row["peer_share"] = mine["amount"] / figure["median_seconds"] / copy
            if mine.get("unique", figure.get("unique")) != figure.get("unique"):
                row["held"] = False
                row["note"] = "other ids: %s unique keys, ours has %s" % (figure.get("unique"), mine.get("unique"))
        rows.append(row)
    if rows:
        rows[0]["seconds"] = a.seconds
        rows[0]["note"] = (rows[0]["note"] + " " + peers["peer"]).strip()
    add(a.rows, rows)


# The parts of a report that two runs of equal bits agree in.
ENDS = ("tables_hash", "dense_hash", "steps", "samples", "epochs", "train", "valid", "test")


def equal_rows(a):
    one, other = (read_json(path) for path in a.reports)
    differ = [key for key in ENDS if one.get(key) != other.get(key) or key not in one]
    add(a.rows, [make_row(a.check, not differ, note="other " + ", ".join(differ) if differ else "equal bits",
                          seconds=a.seconds)])


def near_rows(a):
    one, other = (read_json(path)["test"] for path in a.reports)
    loss = abs(one["logloss"] - other["logloss"])
    auc = abs(one["auc"] - other["auc"])
    # NaN is near nothing.
    held = loss <= 1e-3 * a.within and auc <= 2e-3 * a.within
    add(a.rows, [make_row(a.check, held, note="logloss differs by %.1e, AUC by %.1e" % (loss, auc), seconds=a.seconds)])


def train_rows(a):
    """One line for a run of ours and one for each of the peer's at the same batch and, but for TF32, precision."""
    ours = None
    if a.report and os.path.exists(a.report):
        first, report = (read_json(path) for path in (a.first, a.report))
        # Rows are made in the first epoch, so the second alone is what goes on.
        seconds = report["train_seconds"] - first["train_seconds"]
        ours = (report["samples"] - first["samples"]) / seconds if seconds > 0 else report["samples_per_second"]
    if ours is not None and not a.only_peers:
        add(a.rows, [make_row(a.check, True, ours=ours * 1e-6, unit="M samples/s", seconds=a.seconds)])
    if not a.peers or not os.path.exists(a.peers):
        return
    peers = read_json(a.peers)
    rows = []
    for figure in peers["figures"]:
        if figure["part"] != "dlrm" or ("bf16" in figure["name"]) != (a.precision == "bf16"):
            continue
        rows.append(make_row(a.check + ", " + figure["name"], figure["right"],
                             ours=None if ours is None else ours * 1e-6,
                             peer=figure["samples_per_second"] * 1e-6 if figure["right"] else None,
                             unit="M samples/s", note=figure.get("note", "")))
    add(a.rows, rows)


def write_result(a):
    result = {"stage": a.stage, "commit": a.commit, "device": a.device, "date": a.date, "rows": read_rows(a.rows)}
    with open(a.result + ".new", "w", encoding="utf-8") as out:
        json.dump(result, out, indent=1)
        out.write("\n")
    os.replace(a.result + ".new", a.result)


def number(value):
    if value is None:
        return ""
    return "%.4g" % value if isinstance(value, (int, float)) else str(value)


def percent(value):
    return "" if value is None else "%.0f%%" % (100 * value)


def line_of(row):
    held = {True: "ok", False: "NO", None: "-"}[row["held"]]
    seconds = "" if row["seconds"] is None else "%d" % round(row["seconds"])
    text = "%-2s %-46.46s %9s %9s %-11.11s %5s %5s %4s %s" % (
        held, row["check"], number(row["ours"]), number(row["peer"]), row["unit"], percent(row["share"]),
        percent(row["peer_share"]), seconds, row["note"].replace("\n", " "))
    return text[:150].rstrip()


def table(a):
    """What did not hold first; then as much as there is room for. The exit status: whether all held."""
    result = read_json(a.result)
    rows = result["rows"]
    wrong = [row for row in rows if row["held"] is False]
    shown = wrong + [row for row in rows if row["held"] is not False and row["table"]]
    room = TABLE_LINES - 3
    print("%s of %s on %s, %s" % (result["stage"], result["commit"], result["device"], result["date"]))
    print("%-2s %-46s %9s %9s %-11s %5s %5s %4s %s" %
          ("", "check", "ours", "peer", "unit", "share", "peer%", "s", "note"))
    for row in shown[:room]:
        print(line_of(row))
    absent = sum(1 for row in rows if row["held"] is None)
    print("%d held, %d not, %d could not be here; all %d lines are in %s" %
          (len(rows) - len(wrong) - absent, len(wrong), absent, len(rows), a.result))
    sys.exit(1 if wrong or not rows else 0)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", required=True)
    commands = parser.add_subparsers(required=True)

    def command(name, function):
        made = commands.add_parser(name)
        made.set_defaults(function=function)
        made.add_argument("--seconds", type=float)
        return made

    row = command("row", one_row)
    row.add_argument("--check", required=True)
    row.add_argument("--held", required=True, choices=["yes", "no", "absent"])
    row.add_argument("--ours", type=float)
    row.add_argument("--peer", type=float)
    row.add_argument("--unit", default="")
    row.add_argument("--note", default="")
    bench = command("bench", bench_rows)
    bench.add_argument("report")
    bench.add_argument("--all", action="store_true")
    peers = command("peers", peer_rows)
    peers.add_argument("peers")
    peers.add_argument("reports", nargs="*")
    for name, function in (("equal", equal_rows), ("near", near_rows)):
        compare = command(name, function)
        compare.add_argument("--check", required=True)
        compare.add_argument("reports", nargs=2)
        compare.add_argument("--within", type=float, default=1, help="near: times what fp32 may differ by")
    train = command("train", train_rows)
    train.add_argument("--check", required=True)
    train.add_argument("--precision", required=True)
    train.add_argument("--first")
    train.add_argument("--report")
    train.add_argument("--peers")
    train.add_argument("--only_peers", action="store_true")
    result = command("write", write_result)
    for name in ("stage", "commit", "device", "date", "result"):
        result.add_argument("--" + name, required=True)
    end = command("table", table)
    end.add_argument("--result", required=True)
    arguments = parser.parse_args()
    arguments.function(arguments)


if __name__ == "__main__":
    main()
