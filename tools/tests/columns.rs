//! Tables of the tools on a screen of 80 columns: no line is wider, no figure is lost.

mod support;

use support::{PLAN, RAWBENCH, labs, tool};

/// What `program` prints on a screen of `columns`.
fn printed(program: &str, words: &str, columns: usize) -> String {
    let mut command = tool(program);
    command.args(words.split_whitespace());
    let output = command.env("COLUMNS", columns.to_string()).output();
    let output = output.expect("it starts");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{words}: {said}");
    String::from_utf8(output.stdout).expect("UTF-8")
}

fn assert_fits(text: &str, columns: usize) {
    for line in text.lines() {
        let width = line.trim_end().chars().count();
        assert!(width <= columns, "{width} columns: {line}\n{text}");
    }
}

/// All figures of a table: what has a digit in it, in any order.
fn figures(text: &str) -> Vec<String> {
    let words = text.split_whitespace().filter(|word| word.contains('.'));
    let mut figures: Vec<String> = words.map(str::to_owned).collect();
    figures.sort();
    figures
}

#[test]
fn plans_fold() {
    for nodes in [2, 16] {
        let words = format!("vgg19 --nodes {nodes} --batch 32 --bandwidth 10gbit");
        let text = printed(PLAN, &words, 80);
        assert_fits(&text, 80);
        // Folding repeats the names of layers and policies, and drops nothing.
        assert_eq!(figures(&text), figures(&printed(PLAN, &words, 400)));
        for word in ["hybcomm", "speed-up", "paper", "fc6", "per iteration"] {
            assert!(text.contains(word), "`{word}` is missing in:\n{text}");
        }
    }
}

#[test]
fn benchmarks_fold() {
    let mut words = vec![
        ("hogwild --threads --passes 200 --sizes 1KiB", "additions/s"),
        (
            "stream --transport udp --nodes 2 --weights 100000 --seconds 0.5",
            "cycles/s",
        ),
        (
            "conserve --transport udp --weights 20000 --seconds 0.5 --loss 10%",
            "arrived",
        ),
    ];
    if labs() {
        words.extend([
            ("send --lab --seconds 0.2", "ns/frame"),
            (
                "sweep --lab --seconds 0.1 --steps 1 --frames 64,1000",
                "flat out",
            ),
            ("ping --lab --seconds 0.2", "p99.9"),
        ]);
    }
    for (words, expected) in words {
        let text = printed(RAWBENCH, words, 80);
        assert_fits(&text, 80);
        assert!(text.contains(expected), "{words}:\n{text}");
    }
}
