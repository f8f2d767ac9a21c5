//! Right files give the cells that they say; each wrong one gives its message.

use super::cells::{Cells, cells};
use super::read::parse;

fn all(text: &str) -> anyhow::Result<Cells> {
    cells(&parse(&format!("title = \"t\"\n{text}"))?)
}

fn ids(text: &str) -> Vec<String> {
    let all = all(text).expect("a right file");
    all.cells.into_iter().map(|cell| cell.id).collect()
}

#[test]
fn a_title_is_enough() {
    let found = all("").expect("a right file");
    assert_eq!(found.cells.len(), 1);
    assert_eq!(found.cells[0].id, "all");
    assert_eq!(found.cells[0].setting, super::Setting::default());
    assert_eq!(
        parse("title = \"t\"").expect("right").seeds,
        [1, 2, 3, 4, 5]
    );
}

#[test]
fn what_is_varied_is_crossed_and_what_is_compared_goes_over_it() {
    let found = all("
        [nodes]
        count = 8
        [[vary]]
        link.loss = [0, 0.1]
        [[vary]]
        nodes.count = [2, 4]
        link.delay_ms = [1, 2.5]
        [[compare]]
        name = 'a b'
        [[compare]]
        name = 'plain'
        nodes.count = 1
    ")
    .expect("a right file");
    assert_eq!(found.axes, ["link.loss", "link.delay_ms"]);
    assert_eq!(found.ways, ["a b", "plain"]);
    let ids: Vec<&str> = found.cells.iter().map(|cell| cell.id.as_str()).collect();
    assert_eq!(
        ids,
        [
            "a-b,link.loss=0,link.delay_ms=1",
            "a-b,link.loss=0,link.delay_ms=2.5",
            "a-b,link.loss=0.1,link.delay_ms=1",
            "a-b,link.loss=0.1,link.delay_ms=2.5",
            // One node has no links: it is the same everywhere.
            "plain",
        ]
    );
    let cell = &found.cells[3];
    assert_eq!(
        (cell.setting.link.loss, cell.setting.link.delay_ms),
        (0.1, 2.5)
    );
    assert_eq!(cell.setting.nodes.count, 4);
    assert_eq!(cell.at[0].number, Some(0.1));
    assert!(found.cells[4].at.is_empty());
}

#[test]
fn an_entry_may_have_a_name_and_labels() {
    let text = "
        [[vary]]
        name = 'link'
        labels = ['fibre', 'a thin one']
        link.rate = ['1Gbit', '10Mbit']
        link.loss_burst = [{ p = 0, r = 1 }, { p = 0.01, r = 0.2 }]
    ";
    assert_eq!(ids(text), ["link=fibre", "link=a-thin-one"]);
    assert_eq!(
        ids("[[vary]]\nlabels = ['1 %', '5%']\nlink.loss = [0.01, 0.05]"),
        ["link.loss=1pct", "link.loss=5pct"]
    );
    let several = "
        [[vary]]
        name = 'link.rate'
        link.queue_ms = [400, 50]
        link.rate = ['1Mbit', '10Mbit']
    ";
    assert_eq!(ids(several), ["link.rate=1Mbit", "link.rate=10Mbit"]);
    let first = &all(several).expect("a right file").cells[0];
    assert_eq!(first.at[0].label, "1Mbit");
    let found = all(text).expect("a right file");
    let link = &found.cells[1].setting.link;
    assert_eq!(link.rate.0, Some(1.25e6));
    assert_eq!(link.loss_burst.map(|bursts| bursts.r), Some(0.2));
}

#[test]
fn one_way_may_differ_from_the_others() {
    let found = all("
        [link]
        loss = 0.1
        delay_ms = 20
        [[link_of]]
        from = 0
        to = 3
        loss = 0.5
        rate = '10Mbit'
    ")
    .expect("a right file");
    let setting = &found.cells[0].setting;
    let one = setting.link_of[0].over(&setting.link);
    assert_eq!((one.loss, one.delay_ms), (0.5, 20.0));
    assert_eq!(
        setting.link_of[0].rate.map(|rate| rate.0),
        Some(Some(1.25e6))
    );
}

#[test]
fn only_takes_whole_names_and_parts_of_them() {
    let text = "
        [[vary]]
        link.loss = [0, 0.1, 0.15]
    ";
    let only = |only| all(text).expect("right").only(only);
    assert_eq!(only("link.loss=0.1").expect("there").cells.len(), 1);
    assert_eq!(only("loss=0.1").expect("there").cells.len(), 2);
    let error = only("link.los=0.1").expect_err("no such cell").to_string();
    assert!(error.contains("did you mean `link.loss=0.1`?"), "{error}");
}

/// What is wrong, and what the message must say.
const WRONG: [(&str, &[&str]); 50] = [
    (
        "titel = 'x'",
        &["line 2", "unknown field `titel`", "did you mean `title`?"],
    ),
    (
        "[link]\nlss = 0.1",
        &["line 3", "unknown field `lss`", "did you mean `loss`?"],
    ),
    ("[nodes]\ncuont = 3", &["did you mean `count`?"]),
    (
        "[stream]\nprecison = 'int8'",
        &["did you mean `precision`?"],
    ),
    (
        "[stream]\nprecision = 'int4'",
        &["unknown variant `int4`", "did you mean `int8`?"],
    ),
    (
        "[stream]\ndeltas = 'once'",
        &["`exactly-once`", "`fire-and-forget`"],
    ),
    ("engine = 'simm'", &["unknown variant `simm`"]),
    ("title = 'again'", &["line 2", "duplicate key"]),
    ("[model]\nsolver = lenet", &["line 3"]),
    ("seeds = 0", &["seeds: 0 of them"]),
    (
        "seeds = 'five'",
        &["line 2", "give a number of them, or a list"],
    ),
    ("seeds = [1, 2, 1]", &["seeds: 1 stands there twice"]),
    ("[link]\nloss = 1.5", &["link.loss = 1.5: give 0 to 1"]),
    ("[link]\nloss = '10%'", &["line 3", "invalid type: string"]),
    (
        "[link]\nrate = 'fast'",
        &["line 3", "`fast` is not a number of bytes"],
    ),
    ("[link]\nrate = 10", &["10 bytes are too few"]),
    ("[link]\ndelay_ms = -1", &["link.delay_ms = -1: give 0"]),
    (
        "[link]\nloss_burst = { p = 2, r = 0.1 }",
        &["link.loss_burst.p = 2"],
    ),
    ("[link]\nloss_burst = { p = 0.1 }", &["missing field `r`"]),
    (
        "[[link_of]]\nfrom = 0\nto = 9",
        &["link_of.to = 9: there are 4 nodes, 0 to 3"],
    ),
    ("[[link_of]]\nfrom = 1\nto = 1", &["from node 1 to itself"]),
    ("[nodes]\ncount = 0", &["nodes.count = 0: give 1 to 255"]),
    (
        "[nodes]\nslow = [{ node = 4, times = 2 }]",
        &["nodes.slow.node = 4: there are 4 nodes"],
    ),
    (
        "[nodes]\npauses = [{ node = 0, from_s = 1 }]",
        &["missing field `for_s`"],
    ),
    ("[stop]\nat_target = true", &["there is no stop.target"]),
    ("[stop]\ntarget = 98", &["stop.target = 98: give 0 to 1"]),
    (
        "[stream]\nmasters = 5",
        &["stream.masters = 5: give 1 to 4"],
    ),
    (
        "[stream]\nmin_nodes = 2",
        &["stream.min_nodes: all nodes", "leave it out"],
    ),
    (
        "[[vary]]\nlink.loss = 0.1",
        &["[[vary]] link.loss = 0.1: give a list", "[0.1]"],
    ),
    (
        "[[vary]]\nlink.loss = []",
        &["[[vary]] link.loss: the list is empty"],
    ),
    (
        "[[vary]]\nlink.lss = [0.1]",
        &["[[vary]] link.lss = 0.1", "did you mean `loss`?"],
    ),
    (
        "[[vary]]\nlink.loss = [0, 2]",
        &["[[vary]] link.loss = 2", "give 0 to 1"],
    ),
    (
        "[[vary]]\nlink.loss = [0, 0.1]\nnodes.count = [1]",
        &["link.loss has 2 values and nodes.count 1"],
    ),
    (
        "[[compare]]\nstream.deltas = 'exactly-once'",
        &["[[compare]]: an entry has no name"],
    ),
    (
        "engine = 'lab'\n[nodes]\nstep_recording = 'a'",
        &["nodes.step_recording: only the engine sim has it"],
    ),
    (
        "engine = 'lab'\n[poseidon]\n[nodes]\nslow = [{ node = 1, times = 2 }]",
        &["nodes.slow: the reliable path"],
    ),
    ("[poseidon]", &["virtual time has no TCP"]),
    (
        "engine = 'lab'\n[poseidon]\nshceme = 'ps'",
        &["did you mean `scheme`?"],
    ),
    (
        "engine = 'lab'\n[poseidon]\n[link]\nreorder = 0.1",
        &["link.reorder: the reliable path"],
    ),
    (
        "engine = 'program'",
        &["command: the engine program needs one"],
    ),
    (
        "command = ['./a']",
        &["command: only the engine program has it"],
    ),
    ("names.a = 'b'", &["names: only the engine program has it"]),
    (
        "engine = 'program'\ncommand = ['./a']\nnames.seed = 'b'",
        &["names.seed: {seed} has a value already"],
    ),
    (
        "engine = 'program'\ncommand = ['./a']\nfigures_from.strid = '/a'",
        &["figures_from", "`strid` is not a figure", "stride"],
    ),
    (
        "engine = 'program'\ncommand = ['./a']\nfigures_from.stride = 'a'",
        &["figures_from.stride = \"a\": give a JSON pointer"],
    ),
    (
        "engine = 'program'\ncommand = ['./a']\nfigures_from.speedup = '/a'",
        &["figures_from.speedup: it comes from the tests of a run"],
    ),
    ("takes_s = -1", &["takes_s = -1: give 0 to"]),
    (
        "figures = ['goodput']",
        &["`goodput` is not a figure", "goodput_bytes_per_s"],
    ),
    (
        "engine = 'program'\ncommand = ['./a', '{sed}']",
        &["`{sed}` has an unknown name", "known are seed, nodes"],
    ),
    (
        "[[compare]]\nname = 'a'\nstream.delta = 'x'",
        &["[[compare]] a", "did you mean `deltas`?"],
    ),
];

#[test]
fn a_wrong_file_says_what_and_where() {
    for (text, expected) in WRONG {
        let error = match all(text) {
            Ok(_) => panic!("taken: {text}"),
            Err(error) => format!("{error:#}"),
        };
        for part in expected {
            assert!(
                error.contains(part),
                "`{text}`: `{part}` is not in: {error}"
            );
        }
    }
}

#[test]
fn cells_of_one_name_are_refused() {
    let wrong = |text| format!("{:#}", all(text).expect_err("two of a name"));
    let twice = wrong("[[vary]]\nlink.loss = [0.1, 0.1]");
    assert!(
        twice.contains("two cells are named link.loss=0.1"),
        "{twice}"
    );
    let ways = wrong("[[compare]]\nname = 'a'\n[[compare]]\nname = 'a'");
    assert!(ways.contains("two entries are named a"), "{ways}");
    let labels = wrong("[[vary]]\nlink.loss = [0, 0.1]\nlabels = ['a']");
    assert!(labels.contains("2 values and 1 labels"), "{labels}");
}

/// The names of all fields, with those that they stand in.
fn fields(value: &serde_json::Value, above: &str, all: &mut Vec<String>) {
    for (name, value) in value.as_object().expect("an object") {
        let name = format!("{above}{name}");
        match value {
            serde_json::Value::Object(_) => fields(value, &format!("{name}."), all),
            _ => all.push(name),
        }
    }
}

#[test]
fn the_reference_lists_every_field() {
    let reference = include_str!("../../../../docs/reference/experiment-file.md");
    let mut all = Vec::new();
    let setting = serde_json::to_value(super::Setting::default()).expect("JSON");
    fields(&setting, "", &mut all);
    let figures = serde_json::to_value(crate::results::Figures::default()).expect("JSON");
    fields(&figures, "", &mut all);
    assert!(all.len() > 40, "{all:?}");
    let missing = all
        .iter()
        .filter(|name| !reference.contains(&format!("`{name}`")));
    let missing: Vec<_> = missing.collect();
    assert!(missing.is_empty(), "not in experiment-file.md: {missing:?}");
}

#[test]
fn the_shipped_experiments_are_right() {
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../experiments");
    let entries = std::fs::read_dir(folder).expect("experiments");
    let files = entries.map(|entry| entry.expect("an entry").path());
    let files = files.filter(|path| path.extension().is_some_and(|ending| ending == "toml"));
    let guide = include_str!("../../../../docs/guide/study.md");
    let mut count = 0;
    for path in files {
        let experiment = super::read(&path).expect("an experiment");
        cells(&experiment).unwrap_or_else(|error| panic!("{}: {error:#}", path.display()));
        let name = path.file_stem().expect("a name").to_string_lossy();
        assert!(
            guide.contains(&format!("`{name}`")),
            "{name}: not in study.md"
        );
        count += 1;
    }
    assert!(count >= 3);
}

#[test]
fn another_engine_stands_in_the_file_that_is_kept() {
    let on = |text: &str| parse(text).expect("right").on(super::Engine::Lab).source;
    assert_eq!(on("title = 't'"), "engine = \"lab\"\ntitle = 't'\n");
    let given = "title = 't'\nengine = 'sim'\n[nodes]\ncount = 2\n";
    assert_eq!(
        on(given),
        "title = 't'\nengine = \"lab\"\n[nodes]\ncount = 2\n"
    );
}
