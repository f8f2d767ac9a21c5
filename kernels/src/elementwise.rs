//! Loops over whole blobs, compiled for the machine's vectors, and conversions between layouts.

use pulp::Arch;

use super::BLOCK;

/// `max(x, 0) + slope * min(x, 0)`, in place.
pub fn relu(arch: Arch, slope: f32, data: &mut [f32]) {
    arch.dispatch(
        #[inline(always)]
        || {
            for x in data {
                *x = if *x > 0.0 { *x } else { *x * slope };
            }
        },
    );
}

/// The backward pass of [`relu`], in place; `top` is what it gave.
pub fn relu_backward(arch: Arch, slope: f32, top: &[f32], diff: &mut [f32]) {
    arch.dispatch(
        #[inline(always)]
        || {
            for (d, &y) in diff.iter_mut().zip(top) {
                *d = if y > 0.0 { *d } else { *d * slope };
            }
        },
    );
}

/// `to += from`.
pub fn add(arch: Arch, from: &[f32], to: &mut [f32]) {
    arch.dispatch(
        #[inline(always)]
        || {
            for (t, &f) in to.iter_mut().zip(from) {
                *t += f;
            }
        },
    );
}

/// `to *= factor`, value by value.
pub fn multiply(arch: Arch, factor: &[f32], to: &mut [f32]) {
    arch.dispatch(
        #[inline(always)]
        || {
            for (t, &f) in to.iter_mut().zip(factor) {
                *t *= f;
            }
        },
    );
}

/// Images one after the other (`size` values each) into blocks. Images that are missing in the
/// last block become zero.
pub fn images_to_blocks(arch: Arch, images: &[f32], size: usize, blocks: &mut [f32]) {
    arch.dispatch(
        #[inline(always)]
        || {
            for (images, block) in images
                .chunks(size * BLOCK)
                .zip(blocks.chunks_exact_mut(size * BLOCK))
            {
                if images.len() == size * BLOCK {
                    let mut image: [&[f32]; BLOCK] = [&[]; BLOCK];
                    for (l, image) in image.iter_mut().enumerate() {
                        *image = &images[l * size..][..size];
                    }
                    for (p, line) in block.as_chunks_mut::<BLOCK>().0.iter_mut().enumerate() {
                        for (x, image) in line.iter_mut().zip(&image) {
                            *x = image[p];
                        }
                    }
                } else {
                    block.fill(0.0);
                    for (l, image) in images.chunks_exact(size).enumerate() {
                        for (p, &x) in image.iter().enumerate() {
                            block[p * BLOCK + l] = x;
                        }
                    }
                }
            }
        },
    );
}

/// Blocks into one matrix, `size` rows of all images.
pub fn blocks_to_rows(blocks: &[f32], size: usize, rows: &mut [f32]) {
    let width = blocks.len() / size.max(1);
    for (b, block) in blocks.chunks_exact(size * BLOCK).enumerate() {
        for (line, row) in block
            .as_chunks::<BLOCK>()
            .0
            .iter()
            .zip(rows.chunks_exact_mut(width))
        {
            row[b * BLOCK..][..BLOCK].copy_from_slice(line);
        }
    }
}

/// The inverse of [`blocks_to_rows`].
pub fn rows_to_blocks(rows: &[f32], size: usize, blocks: &mut [f32]) {
    let width = rows.len() / size.max(1);
    for (b, block) in blocks.chunks_exact_mut(size * BLOCK).enumerate() {
        for (line, row) in block
            .as_chunks_mut::<BLOCK>()
            .0
            .iter_mut()
            .zip(rows.chunks_exact(width))
        {
            line.copy_from_slice(&row[b * BLOCK..][..BLOCK]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::archs;

    #[test]
    fn layouts_go_there_and_back() {
        let (size, images) = (5, 37);
        let data: Vec<f32> = (0..size * images).map(|i| i as f32).collect();
        for arch in archs() {
            let mut blocks = vec![-1.0; size * 48];
            images_to_blocks(arch, &data, size, &mut blocks);
            let mut rows = vec![-1.0; size * 48];
            blocks_to_rows(&blocks, size, &mut rows);
            for n in 0..48 {
                for p in 0..size {
                    let want = if n < images { data[n * size + p] } else { 0.0 };
                    assert_eq!(rows[p * 48 + n], want);
                }
            }
            let mut back = vec![-1.0; size * 48];
            rows_to_blocks(&rows, size, &mut back);
            assert_eq!(back, blocks);
        }
    }

    #[test]
    fn relu_and_its_gradient() {
        for arch in archs() {
            let mut data = vec![-2.0, 0.0, 3.0];
            relu(arch, 0.5, &mut data);
            assert_eq!(data, [-1.0, 0.0, 3.0]);
            let mut diff = vec![1.0, 1.0, 1.0];
            relu_backward(arch, 0.5, &data, &mut diff);
            assert_eq!(diff, [0.5, 0.5, 1.0]);
        }
    }
}
