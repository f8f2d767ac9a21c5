//! Pictures of any numbers.

use proptest::prelude::*;

use super::tests::row;
use super::*;

fn curve(points: &[&[(f64, f64)]]) -> Curve {
    let series = points.iter().enumerate().map(|(i, points)| Series {
        name: format!("node {i}"),
        points: points.to_vec(),
    });
    Curve {
        title: "A <title> & more".into(),
        panels: vec![Panel {
            series: series.collect(),
            x_label: "seconds".into(),
            y_label: "y".into(),
            ..Panel::default()
        }],
    }
}

#[test]
fn rows_become_one_line_for_each_solver_in_each_panel() {
    let other = |node, solver| CurveRow {
        node,
        solver,
        ..row(2)
    };
    let curve = Curve::learning("LeNet", &[row(0), row(1), row(2), other(0, 0)]);
    let labels = curve.panels.iter().map(|p| (&*p.x_label, &*p.y_label));
    assert_eq!(
        labels.collect::<Vec<_>>(),
        [
            ("iterations", "test error (%)"),
            ("seconds", "test error (%)"),
            ("iterations", "training loss"),
            ("seconds", "training loss"),
        ]
    );
    for panel in &curve.panels {
        let names: Vec<&str> = panel.series.iter().map(|s| s.name.as_str()).collect();
        assert_eq!(names, ["node 0", "node 1"]);
        assert_eq!(panel.y_axis, Axis::Log);
    }
    let points = &curve.panels[1].series[1].points;
    assert_eq!(points.len(), 2, "tests of iterations 0 and 2");
    assert!(points.iter().all(|(_, error)| (error - 10.0).abs() < 1e-9));
    let several = Curve::learning("LeNet", &[row(0), other(1, 1)]);
    assert_eq!(several.panels[0].series[1].name, "node 1, solver 1");
}

#[test]
fn lines_and_dots_are_drawn_and_the_title_is_escaped() {
    let svg = curve(&[&[(0.0, 1.0), (1.0, 2.0)], &[(0.5, 1.5)]])
        .to_svg()
        .unwrap();
    assert!(svg.contains("A &lt;title&gt; &amp; more") && svg.contains("node 1"));
    assert!(svg.contains("<polyline") && svg.contains("<polygon"));
}

/// Two nodes that learn alike lie upon each other: dashes and marks show both.
#[test]
fn lines_upon_each_other_are_both_seen() {
    let line: &[(f64, f64)] = &[(0.0, 1.0), (1.0, 2.0), (2.0, 3.0)];
    let svg = curve(&[line, line]).to_svg().unwrap();
    let parts = |colour: &str| svg.matches(&format!(r#"stroke="{colour}""#)).count();
    assert_eq!(parts("#0072B2"), 2, "a line and its entry in the legend");
    assert!(parts("#D55E00") > 20, "dashes");
    assert!(svg.matches("<circle").count() == 4 && svg.matches("<polygon").count() == 4);
}

#[test]
fn a_long_title_is_wrapped() {
    let mut long = curve(&[&[(0.0, 1.0)]]);
    long.title = "several words ".repeat(40);
    let svg = long.to_svg().unwrap();
    let lines: Vec<&str> = svg
        .lines()
        .filter(|line| line.contains("several"))
        .collect();
    assert!(
        lines.len() > 3 && lines.iter().all(|line| line.len() < 130),
        "{svg}"
    );
}

#[test]
fn a_gap_breaks_the_line() {
    let svg = curve(&[&[
        (0.0, 1.0),
        (1.0, 2.0),
        (2.0, f64::NAN),
        (3.0, 1.0),
        (4.0, 2.0),
    ]])
    .to_svg()
    .unwrap();
    let lines = svg.matches(r##"stroke="#0072B2""##).count();
    assert_eq!(lines, 3, "two parts and the legend");
}

#[test]
fn nothing_measured_is_said() {
    for points in [
        &[][..],
        &[&[][..]],
        &[&[(f64::NAN, 1.0), (1.0, f64::INFINITY)]],
    ] {
        assert!(
            curve(points)
                .to_svg()
                .unwrap()
                .contains("nothing was measured")
        );
    }
}

#[test]
fn a_picture_that_cannot_be_written_is_named() {
    let message = curve(&[])
        .write_svg("/nowhere/curve.svg".as_ref())
        .unwrap_err()
        .to_string();
    assert!(message.contains("/nowhere/curve.svg"), "{message}");
}

/// Writes pictures to look at: `DOGWILD_PICTURES=/tmp cargo test curve::picture_tests::pictures`.
#[test]
fn pictures() {
    let Some(dir) = std::env::var_os("DOGWILD_PICTURES").map(std::path::PathBuf::from) else {
        return;
    };
    let learn = |node: u16, k: f64| {
        (0..25u32).map(move |i| CurveRow {
            node,
            solver: 0,
            iteration: u64::from(i) * 125,
            seconds: f64::from(i) * 0.7,
            loss: (i > 0).then(|| 2.3 * (-f64::from(i) / k).exp() + 0.02),
            test_loss: None,
            test_accuracy: Some(1.0 - 0.9 * (-f64::from(i) / k).exp() - 0.011),
        })
    };
    let named = |curve: Curve, name: &str| curve.write_svg(&dir.join(name)).unwrap();
    let rows: Vec<_> = learn(0, 3.0)
        .chain(learn(1, 3.1))
        .chain(learn(2, 6.0))
        .collect();
    let title = "lenet on digits, 3 nodes over udp, loss 10 %, duplicate 1 %; seed 1; rate 64 MB/s";
    named(Curve::learning(title, &rows), "learning.svg");
    let fall: Vec<_> = (1..500)
        .map(|i| {
            (
                f64::from(i) * 0.1,
                2.3 / f64::from(i).sqrt() + 0.05 * (f64::from(i * i) * 0.37).sin(),
            )
        })
        .collect();
    named(curve(&[&fall]), "loss.svg");
    named(curve(&[&[(12.0, 98.7)], &[(12.5, 98.9)]]), "dots.svg");
    named(curve(&[]), "empty.svg");
}

proptest! {
    #[test]
    fn any_numbers_give_a_picture(points: Vec<Vec<(f64, f64)>>) {
        let points: Vec<&[(f64, f64)]> = points.iter().take(20).map(Vec::as_slice).collect();
        prop_assert!(curve(&points).to_svg().unwrap().ends_with("</svg>\n"));
    }
}
