//! From bytes to the input of a net: mean, scale, mirror, crop, in Caffe's order.
//!
//! Follows `DataTransformer` of Caffe (`src/caffe/data_transformer.cpp`): the output is
//! `(pixel - mean) * scale`; the mean is taken at the pixel's place in the whole image, before
//! mirroring. One difference: in the test phase `mirror` is off, whatever the file says.
//!
//! Invariant: a [`Checked`] transform fits its images, so that applying it cannot fail.

use rand_xoshiro::Xoshiro256PlusPlus;
use rand_xoshiro::rand_core::Rng;

use crate::solver::Phase;

/// What is subtracted from every pixel.
#[derive(Debug, Clone, PartialEq, Default)]
pub enum Mean {
    /// Pixels stay as they are.
    #[default]
    None,
    /// One value for each channel, or one for all (`mean_value`).
    Values(Vec<f32>),
    /// One value for each pixel of the whole image, c·h·w (`mean_file`, or
    /// [`Images::mean_image`](super::Images::mean_image)).
    Image(Vec<f32>),
}

/// Caffe's `transform_param`.
#[derive(Debug, Clone, PartialEq)]
pub struct Transform {
    /// Factor after the mean; 1/256 in LeNet.
    pub scale: f32,
    /// Mirror half of the training images left to right.
    pub mirror: bool,
    /// Height and width, in pixels, of the square cut out: at a random place in training, the
    /// centre in tests.
    pub crop: Option<usize>,
    /// What is subtracted.
    pub mean: Mean,
}

impl Default for Transform {
    fn default() -> Self {
        Self {
            scale: 1.0,
            mirror: false,
            crop: None,
            mean: Mean::None,
        }
    }
}

/// Why a transform does not fit the images.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TransformError {
    /// The crop is empty or larger than the images.
    #[error("transform: crop_size {crop} does not fit images of {height}x{width} pixels; \
             use 1 to {}", height.min(width))]
    Crop {
        /// The size asked for.
        crop: usize,
        /// Pixels of the images.
        height: usize,
        /// Pixels of the images.
        width: usize,
    },
    /// Neither one mean value nor one per channel.
    #[error(
        "transform: {values} mean values for images of {channels} channels; \
             give one, or one for each channel"
    )]
    MeanValues {
        /// Number of values given.
        values: usize,
        /// Channels of the images.
        channels: usize,
    },
    /// A mean image of another shape.
    #[error(
        "transform: the mean image has {values} values but the images have {pixels}; \
             make it from images of the same data set"
    )]
    MeanImage {
        /// Number of values given.
        values: usize,
        /// c·h·w of the images.
        pixels: usize,
    },
}

impl Transform {
    /// Channels, height, width of what comes out for images of `shape`.
    pub fn output_shape(&self, shape: [usize; 3]) -> [usize; 3] {
        match self.crop {
            Some(crop) => [shape[0], crop, crop],
            None => shape,
        }
    }

    /// Checks that the transform fits images of `shape` (c, h, w).
    ///
    /// # Errors
    /// The crop or the mean is of another size.
    pub fn check(self, shape: [usize; 3]) -> Result<Checked, TransformError> {
        let [channels, height, width] = shape;
        let pixels = channels * height * width;
        if let Some(crop) = self.crop
            && (crop == 0 || crop > height.min(width))
        {
            return Err(TransformError::Crop {
                crop,
                height,
                width,
            });
        }
        let mean = match self.mean {
            Mean::None => Subtract::Nothing,
            Mean::Values(values) if values.len() == 1 => {
                Subtract::Channels(vec![values[0]; channels])
            }
            Mean::Values(values) if values.len() == channels => Subtract::Channels(values),
            Mean::Values(values) => {
                return Err(TransformError::MeanValues {
                    values: values.len(),
                    channels,
                });
            }
            Mean::Image(values) if values.len() == pixels => Subtract::Pixels(values),
            Mean::Image(values) => {
                return Err(TransformError::MeanImage {
                    values: values.len(),
                    pixels,
                });
            }
        };
        let (crop_h, crop_w) = self.crop.map_or((height, width), |crop| (crop, crop));
        Ok(Checked {
            shape,
            output: [channels, crop_h, crop_w],
            scale: self.scale,
            mirror: self.mirror,
            mean,
        })
    }
}

#[derive(Debug, Clone, PartialEq)]
enum Subtract {
    Nothing,
    Channels(Vec<f32>),
    Pixels(Vec<f32>),
}

/// A transform that fits images of one shape.
#[derive(Debug, Clone, PartialEq)]
pub struct Checked {
    shape: [usize; 3],
    output: [usize; 3],
    scale: f32,
    mirror: bool,
    mean: Subtract,
}

impl Checked {
    /// Channels, height, width of what comes out.
    pub fn output_shape(&self) -> [usize; 3] {
        self.output
    }

    /// True if training images depend on chance.
    pub(super) fn is_random(&self) -> bool {
        self.mirror || self.output != self.shape
    }

    /// Writes the transformed `image` (c·h·w bytes) to `out` (as long as `output_shape` says).
    /// `rng` decides about crop and mirror in training; tests do not use it.
    pub fn apply(&self, image: &[u8], phase: Phase, rng: &mut Xoshiro256PlusPlus, out: &mut [f32]) {
        let [channels, height, width] = self.shape;
        let [_, out_h, out_w] = self.output;
        let (mut top, mut left) = ((height - out_h) / 2, (width - out_w) / 2);
        let mut mirror = false;
        if phase == Phase::Train {
            if self.output != self.shape {
                top = below(rng, height - out_h + 1);
                left = below(rng, width - out_w + 1);
            }
            mirror = self.mirror && below(rng, 2) == 1;
        }
        // Rows that lie one after the other in both are one run.
        let whole = out_w == width && !mirror;
        let (runs, run_len) = if whole {
            (1, out_h * width)
        } else {
            (out_h, out_w)
        };
        for c in 0..channels {
            for y in 0..runs {
                let from = (c * height + top + y) * width + left;
                let to = c * out_h * out_w + y * out_w;
                let out = &mut out[to..to + run_len];
                self.apply_run(&image[from..from + run_len], c, from, out);
                if mirror {
                    out.reverse();
                }
            }
        }
    }

    /// Mean and scale for pixels of channel `c` that begin at `from` in the image.
    fn apply_run(&self, pixels: &[u8], c: usize, from: usize, out: &mut [f32]) {
        let scale = self.scale;
        let pairs = out.iter_mut().zip(pixels);
        match &self.mean {
            Subtract::Nothing => pairs.for_each(|(out, &p)| *out = f32::from(p) * scale),
            Subtract::Channels(means) => {
                let mean = means[c];
                pairs.for_each(|(out, &p)| *out = (f32::from(p) - mean) * scale);
            }
            Subtract::Pixels(means) => pairs
                .zip(&means[from..])
                .for_each(|((out, &p), mean)| *out = (f32::from(p) - mean) * scale),
        }
    }
}

/// A number below `n`, evenly (to 2⁻³²); `n` is 1 to 2³².
pub(super) fn below(rng: &mut Xoshiro256PlusPlus, n: usize) -> usize {
    (((rng.next_u64() >> 32) * n as u64) >> 32) as usize
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::solver::data::stream;

    fn apply(
        transform: Transform,
        shape: [usize; 3],
        phase: Phase,
        image: &[u8],
        key: u64,
    ) -> Vec<f32> {
        let checked = transform.check(shape).unwrap();
        let mut out = vec![f32::NAN; checked.output_shape().iter().product()];
        checked.apply(image, phase, &mut stream(1, key), &mut out);
        out
    }

    #[test]
    fn mean_comes_before_scale() {
        let t = Transform {
            scale: 0.5,
            mean: Mean::Values(vec![10.0]),
            ..Transform::default()
        };
        assert_eq!(
            apply(t, [1, 1, 3], Phase::Train, &[10, 0, 20], 0),
            [0.0, -5.0, 5.0]
        );
        let t = Transform {
            scale: 2.0,
            mean: Mean::Values(vec![1.0, 2.0]),
            ..Transform::default()
        };
        assert_eq!(
            apply(t, [2, 1, 2], Phase::Test, &[1, 2, 3, 4], 0),
            [0.0, 2.0, 2.0, 4.0]
        );
    }

    #[test]
    fn the_test_phase_takes_the_centre_and_never_mirrors() {
        let image: Vec<u8> = (0..25).collect();
        let mean: Vec<f32> = (0..25).map(|i| if i == 12 { 5.0 } else { 0.0 }).collect();
        for key in 0..50 {
            let t = Transform {
                mirror: true,
                crop: Some(3),
                mean: Mean::Image(mean.clone()),
                ..Transform::default()
            };
            let out = apply(t, [1, 5, 5], Phase::Test, &image, key);
            assert_eq!(out, [6., 7., 8., 11., 7., 13., 16., 17., 18.]);
        }
    }

    #[test]
    fn training_crops_reach_every_place_and_mirror_half() {
        let image: Vec<u8> = (0..16).collect();
        let mut seen = std::collections::BTreeMap::new();
        for key in 0..1800 {
            let t = Transform {
                mirror: true,
                crop: Some(2),
                ..Transform::default()
            };
            let out = apply(t, [1, 4, 4], Phase::Train, &image, key);
            *seen
                .entry(out.iter().map(|&x| x as u8).collect::<Vec<_>>())
                .or_insert(0) += 1;
        }
        assert_eq!(seen.len(), 18, "9 places, mirrored and not");
        assert!(
            seen.contains_key(&vec![10u8, 11, 14, 15]) && seen.contains_key(&vec![1u8, 0, 5, 4])
        );
        assert!(seen.values().all(|&n| n > 50), "{seen:?}");
    }

    #[test]
    fn the_mean_is_that_of_the_place_in_the_whole_image() {
        let image: Vec<u8> = (0..18).collect();
        let mean: Vec<f32> = (0..18).map(|i| i as f32).collect();
        for key in 0..50 {
            let t = Transform {
                mirror: true,
                crop: Some(2),
                mean: Mean::Image(mean.clone()),
                ..Transform::default()
            };
            assert_eq!(apply(t, [2, 3, 3], Phase::Train, &image, key), [0.0; 8]);
        }
    }

    #[test]
    fn what_does_not_fit_is_refused() {
        let message = |t: Transform| t.check([3, 4, 5]).unwrap_err().to_string();
        assert!(
            message(Transform {
                crop: Some(5),
                ..Transform::default()
            })
            .contains("crop_size 5")
        );
        assert!(
            message(Transform {
                crop: Some(0),
                ..Transform::default()
            })
            .contains("use 1 to 4")
        );
        let values = Mean::Values(vec![0.0; 2]);
        assert!(
            message(Transform {
                mean: values,
                ..Transform::default()
            })
            .contains("2 mean values")
        );
        let image = Mean::Image(vec![0.0; 2]);
        assert!(
            message(Transform {
                mean: image,
                ..Transform::default()
            })
            .contains("60")
        );
    }
}
