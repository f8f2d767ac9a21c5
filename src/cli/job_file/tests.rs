//! Job files as text, with flags and an environment of their own.

use super::*;

const FILE: &str = "\
# A comment.
nodes = 3
solvers = [0, 1, 2]
data = \"mnist:${DIR}/mnist\"
pause = [\"1:2:3\", \"0:5:1.5\"]
lab = false

[transport]
no_segmentation = true

[faults]
loss = \"10%\"
delay = 1.5
";

fn environment(name: &str) -> Option<String> {
    (name == "DIR").then(|| "/data".to_owned())
}

fn file(text: &str) -> JobFile {
    JobFile::parse("j.toml".into(), text, &environment)
}

fn job(text: &str, flags: &[&str]) -> Result<Job, String> {
    let flags: Vec<OsString> = flags.iter().map(OsString::from).collect();
    file(text).job(&flags).map_err(|wrong| wrong.to_string())
}

#[test]
fn fields_are_flags_and_flags_say_over_them() {
    let job = job(FILE, &["--nodes", "4", "--loss=0.2"]).expect("a job");
    assert_eq!(job.args.args.nodes, 4);
    assert_eq!(job.origin("nodes"), Origin::Flag);
    assert_eq!(job.origin("loss"), Origin::Flag);
    assert_eq!(job.origin("solvers"), Origin::File(3));
    assert_eq!(
        job.origin("data"),
        Origin::Environment(4, vec!["DIR".into()])
    );
    assert_eq!(job.origin("seed"), Origin::Default);
    let shown = show(&job);
    for line in [
        "nodes = 4                           # flag",
        "solvers = \"0,1,2\"                   # file, line 3",
        "data = \"mnist:/data/mnist\"          # environment: DIR (line 4)",
        "pause = [\"1:2:3\", \"0:5:1.5\"]        # file, line 5",
        "seed = 1                            # default",
        "# iterations =                      # default: the solver file's max_iter; 3000 without one",
        "no_segmentation = true              # file, line 9",
        "loss = 0.2                          # flag",
    ] {
        assert!(
            shown.lines().any(|shown| shown == line),
            "{line} is not in\n{shown}"
        );
    }
}

/// What is shown and what is saved are job files of the same job.
#[test]
fn a_job_comes_back_from_what_is_shown_of_it() {
    let reliable = "sync = \"poseidon\"\n[poseidon]\nworkers = 3\n[transport]\nkey_file = \"k\"";
    for text in [FILE, reliable, "[stream]\nquorum = 2"] {
        comes_back(text);
    }
}

fn comes_back(text: &str) {
    let one = job(text, &[]).expect("a job");
    let shown = show(&one);
    let back = job(&shown, &[]).expect("a job");
    assert!(back.args.args.sync.check(&back.args).is_ok(), "{shown}");
    let without_origin = |text: &str| -> Vec<String> {
        let lines = text
            .lines()
            .map(|line| line.split("  #").next().unwrap_or(line));
        lines.map(|line| line.trim_end().to_owned()).collect()
    };
    assert_eq!(without_origin(&show(&back)), without_origin(&shown));
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("saved.toml");
    save(&path, &one.args).expect("written");
    let text = std::fs::read_to_string(&path).expect("there");
    let back = job(&text, &[]).expect("a job");
    assert_eq!(without_origin(&show(&back)), without_origin(&shown));
    assert!(text.lines().count() < 20, "only what was given: {text}");
    let again = save(&path, &one.args)
        .expect_err("there already")
        .to_string();
    assert!(again.contains("is there already"), "{again}");
}

/// A flag says the whole of a field, so nothing asks for its variables.
#[test]
fn a_flag_needs_no_variable_of_what_it_replaces() {
    let text = "data = \"mnist:${NOWHERE}/${DIR}\"\n";
    let by_flag = job(text, &["--data", "digits"]).expect("a job");
    assert_eq!(by_flag.origin("data"), Origin::Flag);
    let lacks = "j.toml:1: data: the environment has no NOWHERE, which `${NOWHERE}` asks for";
    assert_eq!(job(text, &["--nodes", "2"]).err().as_deref(), Some(lacks));
}

#[test]
fn everything_that_is_wrong_is_told_at_once_with_its_line() {
    let text = "\
nods = 2
seed = \"x\"
loss = 0.1
lab = 1
resume = true
data = \"mnist:${NOWHERE}\"
iterations = true

[strem]
rate = \"5MB\"

[stream]
precison = \"bf16\"
nodes = 2
merge = \"median\"
rate = 2020-01-01
";
    let said = job(text, &[]).err().expect("wrong");
    let expected = [
        "j.toml:1: unknown field `nods` (did you mean `nodes`?)",
        "j.toml:2: seed = 'x': give a whole number, 0 or more",
        "j.toml:3: field `loss` belongs into [faults]",
        "j.toml:4: lab is true or false",
        "j.toml:5: `resume` says how to run a job, and not which: give it as a flag",
        "j.toml:6: data: the environment has no NOWHERE, which `${NOWHERE}` asks for",
        "j.toml:7: iterations is a boolean: give text, a number or a list of them",
        "j.toml:9: unknown table [strem] (did you mean `stream`?)",
        "j.toml:13: unknown field `precison` in [stream] (did you mean `precision`?)",
        "j.toml:14: field `nodes` stands above all tables, and not in [stream]",
        "j.toml:15: merge = 'median' [possible values: mean, sum] tip: a similar value exists: 'mean'",
        "j.toml:16: rate is a datetime: give text, a number or a list of them",
    ];
    assert_eq!(said.lines().collect::<Vec<_>>(), expected);
}

#[test]
fn broken_toml_is_told_by_line_with_all_else() {
    let said = job("nodes = \nseed = 3\nnods = 1\nnodes = 2\nnodes = 3\n", &[]);
    let said = said.err().expect("wrong");
    for part in [
        "j.toml:1: ",
        "j.toml:3: unknown field `nods`",
        "j.toml:5: duplicate key",
    ] {
        assert!(said.contains(part), "{part} is not in {said}");
    }
}

#[test]
fn what_does_not_fit_together_names_the_line_of_its_field() {
    for (text, flags, part) in [
        ("\nlab_rate = \"1MB\"", &[][..], "--lab"),
        (
            "\nsync = \"poseidon\"\nnodes = 2",
            &[],
            "j.toml:3: --nodes means nothing",
        ),
        ("\nnodes = 2\nsolvers = [1]", &["--nodes", "3"], ""),
        (
            "\n[stream]\nplaces = 1",
            &[],
            "j.toml:3: --places 1 for 2 nodes",
        ),
        ("\n[transport]\nkey_file = \"/no/key\"", &[], "/no/key"),
        ("\nsolver = \"lnet\"", &[], "did you mean `lenet`"),
        ("\ndata = \"mnist:/no/folder\"", &[], "/no/folder"),
        ("", &["--nods", "3"], "--nods"),
    ] {
        let said = job(text, flags).and_then(|job| job.check().map_err(|wrong| wrong.to_string()));
        match said {
            Err(said) => assert!(said.contains(part), "{part} is not in {said}"),
            Ok(()) => assert_eq!(part, "", "{text}"),
        }
    }
}

/// A file that says false does not keep a flag from saying true, and a group of two nodes may have
/// a quorum in either table.
#[test]
fn switches_and_the_quorum() {
    let job_of = |text: &str, flags: &[&str]| job(text, flags).expect("a job");
    assert!(job_of("lab = false", &["--lab"]).args.args.lab.lab);
    assert!(!job_of("lab = false", &[]).args.args.lab.lab);
    for table in ["stream", "poseidon"] {
        let job = job_of(&format!("[{table}]\nquorum = 2"), &[]);
        assert_eq!(job.args.quorum().expect("of two"), Some(2));
    }
}

#[test]
fn the_reference_has_every_field_in_its_table() {
    let text = include_str!("../../../docs/reference/job-file.md");
    let (_, rows) = text.split_once("## Fields").expect("the table");
    let fields = Fields::of(&command());
    for field in &fields.0 {
        let mut rows = rows.lines().filter(|row| match field.table {
            "" => row.starts_with("| above") || row.starts_with("| the same"),
            table => row.starts_with(&format!("| `[{table}]` ")),
        });
        let name = format!("`{}`", field.id);
        assert!(
            rows.any(|row| row.contains(&name)),
            "{name} is not in [{}]",
            field.table
        );
    }
    let named = rows.matches('`').count() / 2;
    // The names of four tables, this file, and the quorum, which stands in two.
    assert_eq!(named, fields.0.len() + 4 + 1 + 1, "a field that is none");
}
