//! Every kernel on every instruction set, held to a plain loop over plain floats.

use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

use proptest::prelude::*;

use super::*;
use crate::weights::Journal;

/// Floats that hurt: what rounding, comparison and copying get wrong, among ordinary ones.
fn float() -> impl Strategy<Value = f32> {
    prop_oneof![
        6 => -1e3f32..1e3,
        1 => prop::sample::select(vec![
            0.0, -0.0, f32::NAN, -f32::NAN, f32::INFINITY, f32::NEG_INFINITY, f32::MAX, f32::MIN,
            f32::MIN_POSITIVE, -f32::MIN_POSITIVE, f32::from_bits(1), f32::from_bits(0x8000_0001),
            f32::from_bits(0x007f_ffff), f32::from_bits(0x7f80_0001), 1.0, -1.0,
        ]),
        1 => any::<u32>().prop_map(f32::from_bits),
    ]
}

/// What a weight may be: anything but -0.0.
fn weight() -> impl Strategy<Value = f32> {
    float().prop_map(|x| x + 0.0)
}

/// Words that begin anywhere in a cache line.
struct Shared {
    words: Vec<AtomicU32>,
    start: usize,
}

impl Shared {
    fn new(values: &[f32], start: usize) -> Self {
        let before = std::iter::repeat_n(7.0, start);
        let all = before.chain(values.iter().copied()).chain([7.0; 16]);
        Self {
            words: all.map(|v| AtomicU32::new(v.to_bits())).collect(),
            start,
        }
    }

    fn view(&self) -> WeightsView<'_> {
        WeightsView::of(&self.words[self.start..self.words.len() - 16])
    }

    fn values(&self) -> Vec<f32> {
        let all: Vec<f32> = self
            .words
            .iter()
            .map(|w| f32::from_bits(w.load(Relaxed)))
            .collect();
        let inner = self.start..all.len() - 16;
        let outer = all[..inner.start].iter().chain(&all[inner.end..]);
        assert!(
            outer.into_iter().all(|&x| x == 7.0),
            "wrote outside its weights"
        );
        all[inner].to_vec()
    }
}

/// Bytes that begin anywhere.
fn bytes(values: &[f32], start: usize) -> Vec<u8> {
    let payload = values.iter().flat_map(|v| v.to_le_bytes());
    std::iter::repeat_n(0, start).chain(payload).collect()
}

fn floats(bytes: &[u8]) -> Vec<f32> {
    bytes
        .as_chunks()
        .0
        .iter()
        .map(|b| f32::from_le_bytes(*b))
        .collect()
}

/// The same bits, but for the payload of a NaN.
#[track_caller]
fn same(found: &[f32], expected: &[f32], what: &str) {
    assert_eq!(found.len(), expected.len());
    for (i, (f, e)) in found.iter().zip(expected).enumerate() {
        let equal = f.to_bits() == e.to_bits() || f.is_nan() && e.is_nan();
        assert!(
            equal,
            "{what}: weight {i} is {f:e} ({:#x}), expected {e:e}",
            f.to_bits()
        );
    }
}

#[derive(Clone, Debug)]
struct Case {
    w: Vec<f32>,
    last: Vec<f32>,
    sent: Vec<f32>,
    pos: Vec<f32>,
    start: usize,
}

/// Whole blocks.
fn chunk() -> impl Strategy<Value = Case> {
    (0usize..5, 0usize..64).prop_flat_map(|(blocks, start)| {
        let n = blocks * BLOCK;
        let of = |s: BoxedStrategy<f32>| prop::collection::vec(s, n);
        // `sent` is a finite difference or zero; a position comes from a buffer without -0.0.
        let finite = weight().prop_map(|x| if x.is_finite() { x } else { 0.0 });
        (
            of(weight().boxed()),
            of(weight().boxed()),
            of(finite.boxed()),
            of(weight().boxed()),
        )
            .prop_map(move |(w, last, sent, pos)| Case {
                w,
                last,
                sent,
                pos,
                start,
            })
    })
}

/// Half of the weights have not moved.
fn settled(mut case: Case) -> Case {
    for i in (0..case.w.len()).step_by(2) {
        case.last[i] = case.w[i];
    }
    case
}

fn difference(x: f32, last: f32) -> f32 {
    let d = x - last;
    if d.is_finite() { d } else { 0.0 }
}

/// Which take, and what a plain loop makes of it: w, last, sent, out.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Which {
    Confirmed,
    Unconfirmed,
    Keep,
    Forget,
}

fn expected(which: Which, scale: f32, c: &Case) -> [Vec<f32>; 4] {
    let mut e = [
        c.w.clone(),
        c.last.clone(),
        c.sent.clone(),
        vec![9.0; c.w.len()],
    ];
    for i in 0..c.w.len() {
        let (pos, sent, d) = (c.pos[i], c.sent[i], difference(c.w[i], c.last[i]));
        let (w, last, new_sent, out) = match which {
            Which::Confirmed => (pos + d, pos + d, d, d * scale),
            Which::Unconfirmed => (pos + sent + d, pos + sent, sent, sent * scale),
            Which::Keep => (pos + d, pos, sent, 9.0),
            Which::Forget => (pos + d, pos + d, sent, d * scale),
        };
        for (to, value) in e.iter_mut().zip([w, last, new_sent, out]) {
            to[i] = value;
        }
    }
    e
}

fn check_take(k: Kernels, which: Which, scale: f32, writes: Writes, c: &Case) {
    let [w, last, sent] = [&c.w, &c.last, &c.sent].map(|v| Shared::new(v, c.start % 16));
    let pos = bytes(&c.pos, c.start);
    let mut out = bytes(&vec![9.0; c.w.len()], c.start ^ 21);
    let (position, payload) = (&pos[c.start..], &mut out[c.start ^ 21..]);
    let journal = Journal::default();
    let views = (w.view(), last.view(), sent.view());
    let taken = match which {
        Which::Confirmed => k.take_confirmed(
            views.0, views.1, views.2, position, payload, scale, &journal, writes,
        ),
        Which::Unconfirmed => k.take_unconfirmed(
            views.0,
            views.1,
            views.2,
            position,
            Some(payload),
            scale,
            &journal,
            writes,
        ),
        Which::Keep => k.take_keep(views.0, views.1, position, &journal, writes),
        Which::Forget => k.take_forget(views.0, views.1, position, payload, scale, writes),
    };
    let what = format!("{which:?} {writes:?} {:?}", k.isa());
    let found = [
        w.values(),
        last.values(),
        sent.values(),
        floats(&out[c.start ^ 21..]),
    ];
    for ((f, e), name) in found
        .iter()
        .zip(&expected(which, scale, c))
        .zip(["w", "last", "sent", "out"])
    {
        same(f, e, &format!("{what} {name}"));
        // What leaves scaled is never stored as a weight, only added to one.
        let zero = f.iter().position(|x| x.to_bits() == 0x8000_0000);
        assert!(
            zero.is_none() || name == "out" && scale != 1.0,
            "{what} made -0.0 in {name}"
        );
    }
    let moves = || c.w.iter().zip(&c.last).map(|(w, l)| w - l);
    let bad = moves().filter(|d| !d.is_finite()).count() as u32;
    let moved = moves().any(|d| d.is_finite() && d != 0.0);
    assert_eq!(
        taken,
        Taken {
            moved,
            non_finite: bad
        },
        "{what}"
    );
}

/// What leaves of `x`: said in plain words, in f64.
fn what_leaves(rounding: Rounding<'_>, i: usize, x: f32) -> f32 {
    let Rounding::Steps(steps, most) = rounding else {
        return f32::from_bits(x.to_bits() & 0xffff_0000) + 0.0;
    };
    let step = f64::from(steps[i / STEP_BLOCK]);
    let most = f64::from(most) * step;
    ((f64::from(x).clamp(-most, most) / step).round_ties_even() * step) as f32 + 0.0
}

fn check_rounded(k: Kernels, writes: Writes, rounding: Rounding<'_>, portion: f32, c: &Case) {
    let [w, last, sent] = [&c.w, &c.last, &c.sent].map(|v| Shared::new(v, c.start % 16));
    let pos = bytes(&c.pos, c.start);
    let mut out = bytes(&vec![9.0; c.w.len()], c.start);
    let journal = Journal::default();
    k.take_rounded(
        w.view(),
        last.view(),
        sent.view(),
        &pos[c.start..],
        &mut out[c.start..],
        rounding,
        portion,
        &journal,
        writes,
    );
    let mut expected = [(); 4].map(|()| Vec::new());
    for i in 0..c.w.len() {
        let d = difference(c.w[i], c.last[i]);
        let out = what_leaves(rounding, i, d * portion);
        let mut sent = out * (1.0 / portion) + 0.0;
        if portion != 1.0 {
            let rest = d - sent;
            sent = d - if rest.abs() < rounded::REST_LEAST {
                0.0
            } else {
                rest
            } + 0.0;
        }
        let values = [c.pos[i] + d, c.pos[i] + sent, sent, out];
        expected
            .iter_mut()
            .zip(values)
            .for_each(|(to, x)| to.push(x));
    }
    let found = [
        w.values(),
        last.values(),
        sent.values(),
        floats(&out[c.start..]),
    ];
    for ((f, e), name) in found
        .iter()
        .zip(&expected)
        .zip(["w", "last", "sent", "out"])
    {
        same(
            f,
            e,
            &format!("{rounding:?} {writes:?} {:?} {name}", k.isa()),
        );
        assert!(
            f.iter().all(|x| x.to_bits() != 0x8000_0000),
            "made -0.0 in {name}"
        );
    }
}

proptest! {
    #[test]
    fn takes_agree_with_the_plain_loop(case in prop_oneof![chunk(), chunk().prop_map(settled)]) {
        for k in Kernels::available() {
            for writes in [Writes::Racy, Writes::Atomic] {
                for which in [Which::Confirmed, Which::Unconfirmed, Which::Keep, Which::Forget] {
                    for scale in [1.0, 0.25, 0.3] {
                        check_take(k, which, scale, writes, &case);
                    }
                }
            }
        }
    }

    #[test]
    fn what_leaves_rounded_and_what_stays_are_the_delta(
        case in prop_oneof![chunk(), chunk().prop_map(settled)], exponent in -149i32..105, sum in any::<bool>()
    ) {
        let portion = if sum { 1.0 } else { 0.3 };
        let step = if exponent < -126 { f32::from_bits(1 << (exponent + 149)) } else { 2f32.powi(exponent) };
        let steps = vec![step; case.w.len().div_ceil(STEP_BLOCK)];
        for k in Kernels::available() {
            for writes in [Writes::Racy, Writes::Atomic] {
                for rounding in [Rounding::Bf16, Rounding::Steps(&steps, 127.0), Rounding::Steps(&steps, 1.0)] {
                    check_rounded(k, writes, rounding, portion, &case);
                }
            }
        }
    }

    #[test]
    fn the_largest_moves_are_found(case in chunk()) {
        let d: Vec<f32> = case.w.iter().zip(&case.last).map(|(w, l)| difference(*w, *l).abs()).collect();
        let expected: Vec<f32> = d.chunks(STEP_BLOCK).map(|block| block.iter().copied().fold(0.0, f32::max)).collect();
        for k in Kernels::available() {
            let [w, last] = [&case.w, &case.last].map(|v| Shared::new(v, case.start % 16));
            let mut found = vec![9.0; expected.len()];
            k.largest_moves(w.view(), last.view(), &mut found);
            same(&found, &expected, "largest moves");
        }
    }

    #[test]
    fn adopt_takes_everything_and_no_negative_zero(case in chunk(), zeros in any::<bool>()) {
        let mut case = case;
        if zeros {
            case.pos.fill(-0.0);
        }
        for k in Kernels::available() {
            let [w, last, sent] = [&case.w, &case.last, &case.sent].map(|v| Shared::new(v, 3));
            let pos = bytes(&case.pos, case.start);
            k.adopt(w.view(), last.view(), sent.view(), &pos[case.start..]);
            let expected: Vec<f32> = case.pos.iter().map(|p| p + 0.0).collect();
            same(&w.values(), &expected, "w");
            same(&last.values(), &expected, "last");
            same(&sent.values(), &vec![0.0; case.w.len()], "sent");
        }
    }

    #[test]
    fn apply_adds_from_where_it_is_told(case in chunk(), first in 0usize..100) {
        let first = first.min(case.w.len());
        // What would not be finite is left out, weight by weight.
        let add = |(i, (w, d)): (usize, (&f32, &f32))| {
            if i < first || !(w + d).is_finite() { *w } else { w + d }
        };
        let finite = |(w, d): (&f32, &f32)| (w + d).is_finite();
        let refused = case.w.iter().zip(&case.pos).skip(first).filter(|pair| !finite(*pair)).count();
        let expected: Vec<f32> = case.w.iter().zip(&case.pos).enumerate().map(add).collect();
        for k in Kernels::available() {
            for writes in [Writes::Racy, Writes::Atomic] {
                let w = Shared::new(&case.w, 5);
                let delta = bytes(&case.pos, case.start);
                let journal = Journal::default();
                let left = k.apply_delta(w.view(), &delta[case.start..], first as u32, &journal, writes);
                prop_assert_eq!(left as usize, refused);
                same(&w.values(), &expected, &format!("{writes:?} {:?}", k.isa()));
            }
        }
    }

    #[test]
    fn copies_and_additions_of_any_length(
        pairs in prop::collection::vec((weight(), float()), 0..100),
        start in 0usize..64,
        a in float(),
    ) {
        let (w0, x): (Vec<f32>, Vec<f32>) = pairs.into_iter().unzip();
        let payload = bytes(&x, start);
        for k in Kernels::available() {
            let w = Shared::new(&w0, start % 16);
            let mut out = vec![1.0; w0.len()];
            k.copy_out(w.view(), &mut out);
            same(&out, &w0, "copy_out");
            let mut out = bytes(&out, start);
            out[start..].fill(1);
            k.copy_out_bytes(w.view(), &mut out[start..]);
            same(&floats(&out[start..]), &w0, "copy_out_bytes");
            out[start..].fill(1);
            let bad = w0.iter().any(|x| !x.is_finite());
            prop_assert_eq!(k.copy_out_checked(w.view(), &mut out[start..]), bad);
            same(&floats(&out[start..]), &w0, "copy_out_checked");

            let axpy: Vec<f32> = w0.iter().zip(&x).map(|(w, x)| w + a * x).collect();
            k.racy_axpy(w.view(), a, &x);
            same(&w.values(), &axpy, "racy_axpy");
            let sum: Vec<f32> = axpy.iter().map(|w| w + a).collect();
            k.racy_add_scalar(w.view(), a);
            same(&w.values(), &sum, "racy_add_scalar");
            let sum: Vec<f32> = sum.iter().map(|w| w + a).collect();
            k.atomic_add_scalar(w.view(), a);
            same(&w.values(), &sum, "atomic_add_scalar");
            prop_assert!(w.values().iter().all(|x| x.to_bits() != 0x8000_0000));

            let normal: Vec<f32> = x.iter().map(|x| x + 0.0).collect();
            k.copy_in(w.view(), &x);
            same(&w.values(), &normal, "copy_in");
            k.racy_add_scalar(w.view(), 1.0);
            k.copy_in_bytes(w.view(), &payload[start..]);
            same(&w.values(), &normal, "copy_in_bytes");
            let bad = x.iter().any(|x| !x.is_finite());
            prop_assert_eq!(k.any_non_finite(&payload[start..]), bad);
        }
    }
}

#[test]
fn one_bad_value_is_found_wherever_it_is() {
    for k in Kernels::available() {
        for n in 1..70 {
            for at in 0..n {
                for bad in [f32::NAN, f32::NEG_INFINITY] {
                    let mut x = vec![f32::MAX; n];
                    x[at] = bad;
                    let mut out = vec![0; 4 * n];
                    let w = Shared::new(&x, at);
                    assert!(
                        k.any_non_finite(bytes_of(&x)) && k.copy_out_checked(w.view(), &mut out),
                        "{bad} at {at} of {n}, {:?}",
                        k.isa()
                    );
                }
            }
            assert!(!k.any_non_finite(bytes_of(&vec![f32::MAX; n])));
        }
    }
}

#[test]
fn concurrent_atomic_adders_lose_nothing_to_atomic_takes() {
    const N: usize = 64;
    const ADDS: u32 = 2000;
    let zeros = vec![0.0; N];
    let [w, last, sent] = [&zeros; 3].map(|v| Shared::new(v, 0));
    let journal = Journal::default();
    let mut master = zeros.clone();
    let mut rounds = 0;
    let mut round = || {
        let pos = bytes(&master, 0);
        let mut out = bytes(&zeros, 0);
        let (views, writes) = ((w.view(), last.view(), sent.view()), Writes::Atomic);
        take_confirmed(
            views.0, views.1, views.2, &pos, &mut out, 1.0, &journal, writes,
        );
        // The master adds the delta, and something of its own, so that positions move.
        for (m, d) in master.iter_mut().zip(floats(&out)) {
            *m += d + 1.0;
        }
        rounds += 1;
    };
    std::thread::scope(|s| {
        let adder = s.spawn(|| {
            for _ in 0..ADDS {
                atomic_add_scalar(w.view(), 1.0);
            }
        });
        while !adder.is_finished() {
            round();
        }
    });
    round();
    same(&master, &vec![(ADDS + rounds) as f32; N], "master");
}

#[test]
#[should_panic(expected = "not whole blocks")]
fn a_torn_block_is_refused() {
    let w = Shared::new(&[0.0; 20], 0);
    adopt(w.view(), w.view(), w.view(), &[0; 80]);
}

#[test]
#[should_panic(expected = "4 bytes per weight")]
fn a_short_payload_is_refused() {
    let w = Shared::new(&[0.0; 32], 0);
    apply_delta(w.view(), &[0; 64], 0, &Journal::default(), Writes::Racy);
}
