//! Momentum of masters, where a turn takes many steps.
//!
//! A node that walks ahead for all (`portion`) guesses at what the others do. In a long turn the
//! guess is too noisy: it is the walk of one node with steps that were meant for the mean of all.
//! So the longer a turn is, the less far solvers walk, and the more of what a turn has brought goes
//! on in the next ones. That is Nesterov momentum on the movement of positions, chunk by chunk: the
//! outer optimiser of DiLoCo (arXiv 2311.08105).
//!
//! Touches the weights of chunks that this node streams, before their position goes. Invariants:
//! each chunk moves once in a turn, as far as solvers made steps since it moved last; without steps
//! nothing moves. What is remembered is in no file: a node that takes a range over begins without.

use crate::weights::{WeightsView, Writes};

/// Steps of each node in a turn up to which solvers walk for all, and from which on they make plain
/// steps.
const SHORT: f64 = 4.0;
const LONG: f64 = 16.0;
/// Momentum of turns that are half as long on the scale of the two, or longer, and how far one such
/// turn moves at most, in movements of nodes.
const MOST: f64 = 0.8;
const FARTHEST: f64 = 0.8;
/// Where more steps were made than in a usual turn, so many times as far, at most.
const LONGEST: f64 = 2.0;
/// A smaller part of the way is not worth the memory.
const LEAST: f64 = 0.05;
/// Share of what is known of turns that the newest one replaces.
const SMOOTHING: f64 = 0.5;

/// How far solvers walk, and what masters do, where a turn takes so many steps. The product of
/// `stride` and what momentum adds up to, `rate / (1 - momentum)`, is the number of nodes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Rule {
    /// Steps that a solver takes at once, at most.
    pub(super) stride: f64,
    pub(super) momentum: f64,
    pub(super) rate: f64,
}

impl Rule {
    /// For turns of `age` steps of each of `nodes` nodes.
    pub(super) fn of(age: f64, nodes: f64) -> Self {
        let part = ((age / SHORT).max(1.0).log2() / (LONG / SHORT).log2()).min(1.0);
        let part = if part < LEAST { 0.0 } else { part };
        let gain = nodes.max(1.0).powf(part);
        let ramp = (2.0 * part).min(1.0);
        let farthest = 1.0 - ramp * (1.0 - FARTHEST);
        let momentum = match gain > 1.0 {
            true => (MOST * ramp).max(1.0 - farthest / gain),
            false => 0.0,
        };
        Self {
            stride: nodes.max(1.0) / gain,
            momentum,
            rate: gain * (1.0 - momentum),
        }
    }
}

/// The momentum of the chunks that one node streams.
#[derive(Clone, Debug, Default)]
pub(super) struct Momentum {
    /// Steps of each node in a turn, smoothed; and before the last turn, which solvers may have
    /// ended in.
    age: f64,
    age_before: f64,
    /// `None`: nothing goes on.
    rule: Option<Rule>,
    /// Of each weight the last position, and how far it moves with momentum; none: not known yet.
    chunks: Vec<Option<Moving>>,
    /// The chunk that has moved, and its position has not left.
    moved: Option<usize>,
    /// The solvers of this node have finished.
    finished: bool,
}

#[derive(Clone, Debug)]
struct Moving {
    position: Vec<f32>,
    /// Empty until it has moved.
    velocity: Vec<f32>,
    /// Steps that each node had made then.
    steps: f64,
}

impl Momentum {
    /// A turn over so many chunks begins. In the last one each of `nodes` nodes made `steps` steps;
    /// none: its work is not merged as a mean.
    pub(super) fn begin_turn(&mut self, chunks: usize, steps: f64, nodes: Option<f64>) {
        self.age_before = self.age;
        self.age = match self.age > 0.0 {
            true => self.age + SMOOTHING * (steps - self.age),
            false => steps,
        };
        let rule = nodes.map(|nodes| Rule::of(self.age, nodes));
        #[cfg(test)]
        let rule = trial::rule(self.age).or(rule);
        self.rule = rule.filter(|rule| rule.momentum > 0.0 && !self.finished);
        // The first turn with steps may be a long one: what it brings goes on in the next.
        let is_first = nodes.is_some() && self.age == 0.0 && !self.finished;
        match is_first || self.rule.is_some() {
            true => self.chunks.resize(chunks, None),
            false => self.chunks.clear(),
        }
    }

    /// Tells whether the solvers of this node have finished. What is under way then is given up:
    /// there is no turn any more in which solvers could correct what went too far.
    pub(super) fn set_finished(&mut self, finished: bool) {
        self.finished = finished;
        if finished {
            self.rule = None;
            self.chunks.clear();
        }
    }

    /// Whether the chunk at `place` in the turn is to move on before its position goes: if it has
    /// not moved already.
    #[inline]
    pub(super) fn moves(&self, place: usize) -> bool {
        !self.chunks.is_empty() && self.moved != Some(place)
    }

    /// Moves the weights `w` of the chunk at `place` in the turn on. Each node has made so many
    /// `steps`, ever.
    #[cold]
    pub(super) fn move_on(&mut self, place: usize, steps: f64, w: WeightsView<'_>, writes: Writes) {
        let usual = self.age.max(self.age_before);
        self.moved = Some(place);
        let Some(chunk) = self.chunks.get_mut(place) else {
            return;
        };
        match (chunk, self.rule) {
            (Some(moving), Some(rule)) => {
                let part = (steps - moving.steps) / usual;
                moving.steps = steps;
                moving.move_on(rule, part.clamp(0.0, LONGEST), w, writes);
            }
            (chunk @ None, rule) if rule.is_some() || steps > 0.0 => {
                *chunk = Some(Moving::from(w, steps));
            }
            _ => {}
        }
    }

    /// The position of the chunk that has moved left.
    #[inline]
    pub(super) fn note_went(&mut self) {
        self.moved = None;
    }
}

impl Moving {
    fn from(w: WeightsView<'_>, steps: f64) -> Self {
        Self {
            position: (0..w.len()).map(|i| w.load(i)).collect(),
            velocity: Vec::new(),
            steps,
        }
    }

    /// Moves `w` on as after a usual turn, or `part` of it.
    fn move_on(&mut self, rule: Rule, part: f64, w: WeightsView<'_>, writes: Writes) {
        let (momentum, rate) = (rule.momentum as f32, rule.rate as f32);
        let (kept, part) = (rule.momentum.powf(part) as f32, part as f32);
        self.velocity.resize(w.len(), 0.0);
        let both = self.position.iter_mut().zip(&mut self.velocity);
        for (i, (position, velocity)) in both.enumerate() {
            let now = w.load(i);
            let came = now - *position;
            *velocity = kept * *velocity + came;
            let goes_on = part * (rate * (momentum * *velocity + came) - came);
            if !goes_on.is_finite() {
                // It is healed elsewhere.
                (*position, *velocity) = (now, 0.0);
                continue;
            }
            #[cfg(test)]
            trial::note(w.slice(i, 1), goes_on);
            match writes {
                Writes::Racy => w.racy_add(i, goes_on),
                Writes::Atomic => w.atomic_add(i, goes_on),
            }
            *position = now + goes_on;
        }
    }
}

/// Momentum of all masters of this thread, whatever is measured, and what it moved.
#[cfg(test)]
pub(super) mod trial {
    use std::cell::{Cell, RefCell};
    use std::collections::HashMap;

    use super::Rule;
    use crate::weights::WeightsView;

    thread_local! {
        static RULE: Cell<Option<Rule>> = const { Cell::new(None) };
        /// By the address of the weight.
        static MOVED: RefCell<HashMap<usize, f64>> = RefCell::default();
    }

    /// Forces `rule` on all masters of this thread while `run` runs, as soon as steps are made.
    pub(in super::super) fn forced(rule: Rule, run: impl FnOnce()) {
        RULE.set(Some(rule));
        run();
        RULE.set(None);
    }

    pub(super) fn rule(age: f64) -> Option<Rule> {
        RULE.get().filter(|_| age > 0.0)
    }

    pub(super) fn note(weight: WeightsView<'_>, moved: f32) {
        if RULE.get().is_some() {
            let at = weight.as_ptr().addr();
            MOVED.with_borrow_mut(|all| *all.entry(at).or_default() += f64::from(moved));
        }
    }

    /// How far the first of `weights` was moved in all, while a rule was forced.
    pub(in super::super) fn moved(weights: WeightsView<'_>) -> f64 {
        let at = weights.as_ptr().addr();
        MOVED.with_borrow(|all| all.get(&at).copied().unwrap_or(0.0))
    }

    /// Whether anything was moved.
    pub(in super::super) fn has_moved() -> bool {
        MOVED.with_borrow(|all| all.values().any(|moved| *moved != 0.0))
    }

    /// Forgets what was moved: memory may be used again.
    pub(in super::super) fn forget() {
        MOVED.with_borrow_mut(HashMap::clear);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicU32;

    #[test]
    fn solvers_and_masters_together_go_as_far_as_all_nodes() {
        for nodes in [1.0, 2.0, 4.0, 8.0, 64.0] {
            let mut before = Rule::of(0.0, nodes);
            assert_eq!(before, Rule::of(4.0, nodes));
            assert_eq!(
                (before.stride, before.momentum, before.rate),
                (nodes, 0.0, 1.0)
            );
            for age in [5.0, 6.0, 8.0, 12.0, 16.0, 1000.0] {
                let rule = Rule::of(age, nodes);
                let gain = rule.rate / (1.0 - rule.momentum);
                assert!((rule.stride * gain - nodes).abs() < 1e-9, "{rule:?}");
                assert!((0.0..1.0).contains(&rule.momentum) && rule.rate <= 1.0 + 1e-9);
                assert!(rule.stride <= before.stride && rule.momentum >= before.momentum);
                before = rule;
            }
            assert_eq!(before.stride, 1.0);
        }
    }

    fn words(values: &[f32]) -> Vec<AtomicU32> {
        let words = values.iter().map(|value| AtomicU32::new(value.to_bits()));
        words.collect()
    }

    /// The position of the only chunk goes, if there is room for it.
    fn goes(momentum: &mut Momentum, steps: f64, w: WeightsView<'_>, writes: Writes, room: bool) {
        if momentum.moves(0) {
            momentum.move_on(0, steps, w, writes);
        }
        if room {
            momentum.note_went();
        }
    }

    /// A master of one chunk in turns of 100 steps that has seen it once.
    fn in_long_turns(nodes: f64, w: WeightsView<'_>) -> Momentum {
        let mut momentum = Momentum::default();
        (0..20).for_each(|_| momentum.begin_turn(1, 100.0, Some(nodes)));
        goes(&mut momentum, 0.0, w, Writes::Racy, true);
        momentum
    }

    /// What comes once moves a weight by its gain, over the turns; what does not move stays.
    #[test]
    fn what_came_goes_on_once_in_each_turn_until_solvers_stop() {
        let words = words(&[1.0, -2.0]);
        let w = WeightsView::of(&words);
        let mut momentum = in_long_turns(4.0, w);
        assert_eq!((w.load(0), w.load(1)), (1.0, -2.0));
        w.racy_add(0, 1.0);
        goes(&mut momentum, 100.0, w, Writes::Racy, false);
        let first = w.load(0);
        // There was no room for the position: it does not move again, and is not looked at again.
        assert!(!momentum.moves(0));
        goes(&mut momentum, 100.0, w, Writes::Racy, true);
        assert_eq!(w.load(0), first);
        for turn in 2..102 {
            momentum.begin_turn(1, 100.0, Some(4.0));
            let steps = f64::from(turn) * 100.0;
            goes(&mut momentum, steps, w, Writes::Atomic, true);
        }
        assert!((w.load(0) - 5.0).abs() < 1e-3, "{}", w.load(0));
        assert_eq!(w.load(1), -2.0);
        w.racy_add(0, 1.0);
        momentum.begin_turn(1, 0.0, Some(4.0));
        goes(&mut momentum, 10_100.0, w, Writes::Racy, true);
        assert!((w.load(0) - 6.0).abs() < 1e-3, "{}", w.load(0));
    }

    /// What the first turn with steps brought goes on in the next one, if it was a long one.
    #[test]
    fn it_begins_with_the_first_turn() {
        for (steps, moves) in [(100.0, true), (2.0, false)] {
            let words = words(&[0.0]);
            let w = WeightsView::of(&words);
            let mut momentum = Momentum::default();
            (0..3).for_each(|_| {
                momentum.begin_turn(1, 0.0, Some(4.0));
                goes(&mut momentum, 0.0, w, Writes::Racy, true);
            });
            goes(&mut momentum, 1.0, w, Writes::Racy, true);
            momentum.begin_turn(1, steps, Some(4.0));
            w.racy_add(0, 1.0);
            goes(&mut momentum, 1.0 + steps, w, Writes::Racy, true);
            assert_eq!(w.load(0) > 1.2, moves, "{}", w.load(0));
            assert_eq!(momentum.chunks.is_empty(), !moves);
        }
    }

    /// Solvers stop in the middle of a turn: what was under way goes on by half of it, and then no
    /// more, although it is known late that they have stopped.
    #[test]
    fn it_goes_on_as_far_as_steps_are_made() {
        let [half, whole] = [50.0, 100.0].map(|steps| {
            let words = words(&[0.0]);
            let w = WeightsView::of(&words);
            let mut momentum = in_long_turns(4.0, w);
            w.racy_add(0, 1.0);
            momentum.begin_turn(1, 100.0, Some(4.0));
            goes(&mut momentum, 100.0, w, Writes::Racy, true);
            let before = w.load(0);
            momentum.begin_turn(1, steps, Some(4.0));
            goes(&mut momentum, 100.0 + steps, w, Writes::Racy, true);
            let moved = w.load(0) - before;
            momentum.begin_turn(1, 1.0, Some(4.0));
            goes(&mut momentum, 100.0 + steps, w, Writes::Racy, true);
            assert_eq!(w.load(0), before + moved);
            // Whose own solvers have finished waits for no count.
            momentum.set_finished(true);
            momentum.begin_turn(1, 100.0, Some(4.0));
            assert!(!momentum.moves(0));
            moved
        });
        assert!(0.45 * whole < half && half < 0.6 * whole, "{half} {whole}");
    }

    #[test]
    fn what_is_not_finite_is_forgotten() {
        let words = words(&[1.0]);
        let w = WeightsView::of(&words);
        let mut momentum = in_long_turns(2.0, w);
        for (turn, value) in [(1, f32::NAN), (2, 3.0), (3, 3.0)] {
            w.store(0, value);
            goes(
                &mut momentum,
                f64::from(turn) * 100.0,
                w,
                Writes::Racy,
                true,
            );
        }
        assert_eq!(w.load(0), 3.0);
    }
}
