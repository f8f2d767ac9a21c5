//! Ways through the states as text: `12 Late 3 Restart(1)` is twelve steps of the fair schedule, a
//! frame that is put aside, three steps more, and a restart of node 1.

use super::state::Action;

/// The text of a way.
pub(super) fn tell(way: &[Action]) -> String {
    let runs = way.chunk_by(|a, b| *a == Action::Next && *b == Action::Next);
    let words = runs.map(|run| match run[0] {
        Action::Next => run.len().to_string(),
        action => format!("{action:?}"),
    });
    words.collect::<Vec<_>>().join(" ")
}

/// The way of a text.
pub(super) fn parse(text: &str) -> Vec<Action> {
    let words = text.split_whitespace();
    words.flat_map(word_of).collect()
}

fn word_of(word: &str) -> Vec<Action> {
    if let Ok(steps) = word.parse() {
        return vec![Action::Next; steps];
    }
    let (name, number) = word.split_once('(').unwrap_or((word, "0)"));
    let number = number.trim_end_matches(')').parse::<u8>();
    let number = number.unwrap_or_else(|_| panic!("`{word}` has no number"));
    let node = u16::from(number);
    let action = match name {
        "Late" => Action::Late,
        "Double" => Action::Double,
        "NoSlot" => Action::NoSlot,
        "Come" => Action::Come(number),
        "Restart" => Action::Restart(node),
        "Kill" => Action::Kill(node),
        "Pause" => Action::Pause(node),
        "Back" => Action::Back(node),
        "Lose" => Action::Lose(node),
        "Leave" => Action::Leave(node),
        "Join" => Action::Join(node),
        "Poll" => Action::Poll(node),
        "Deliver" => Action::Deliver(number),
        "Copy" => Action::Copy(number),
        "Drop" => Action::Drop(number),
        "Add" => Action::Add(node),
        "Tick" => Action::Tick,
        _ => panic!("`{word}` is no action"),
    };
    vec![action]
}

#[test]
fn a_way_is_read_as_it_is_told() {
    use Action::{Come, Late, Lose, Next};
    let way = [Next, Next, Late, Next, Come(0), Lose(1)];
    assert_eq!(tell(&way), "2 Late 1 Come(0) Lose(1)");
    assert_eq!(parse(&tell(&way)), way);
}
