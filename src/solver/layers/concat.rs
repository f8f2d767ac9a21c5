//! Concatenation of channels (`Concat`).

use super::{Bottoms, Layer, Params, Pass, Shape, Top, block_len, channels_of};

pub(crate) struct Concat {
    top: Shape,
    /// First channel of each bottom, and the number of channels at the end.
    starts: Vec<usize>,
}

impl Concat {
    pub(crate) fn new(bottoms: &[Shape]) -> Result<(Self, Shape), String> {
        let Some(&[_, height, width]) = bottoms.first() else {
            return Err("needs at least one bottom".to_owned());
        };
        if let Some([c, h, w]) = bottoms.iter().find(|s| s[1..] != [height, width]) {
            return Err(format!(
                "a bottom of {c}x{h}x{w} does not fit the first one's {height}x{width}"
            ));
        }
        let mut starts = vec![0];
        for shape in bottoms {
            starts.push(starts[starts.len() - 1] + shape[0]);
        }
        let top = [starts[bottoms.len()], height, width];
        Ok((Self { top, starts }, top))
    }
}

impl Layer for Concat {
    fn forward(&mut self, _: Pass<'_>, _: Params<'_>, bottoms: Bottoms<'_>, top: &mut [f32]) {
        for (i, part) in self.starts.windows(2).enumerate() {
            let range = channels_of(self.top, part[0]..part[1]);
            let from = bottoms.data(i).chunks_exact(range.len());
            for (from, to) in from.zip(top.chunks_exact_mut(block_len(self.top))) {
                to[range.clone()].copy_from_slice(from);
            }
        }
    }

    fn backward_data(
        &mut self,
        _: Pass<'_>,
        _: Params<'_>,
        _: Bottoms<'_>,
        i: usize,
        top: Top<'_>,
        diff: &mut [f32],
    ) {
        let range = channels_of(self.top, self.starts[i]..self.starts[i + 1]);
        let to = diff.chunks_exact_mut(range.len());
        for (to, from) in to.zip(top.diff.chunks_exact(block_len(self.top))) {
            to.copy_from_slice(&from[range.clone()]);
        }
    }
}
