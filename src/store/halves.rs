//! A batch that is refused as a whole is split by halves until the refused item stands alone.

/// The parts of a batch that are not done yet, in the batch's order.
#[derive(Debug)]
pub struct Halves<'a, T>(Vec<&'a [T]>);

impl<'a, T> Halves<'a, T> {
    /// The whole batch, as one part.
    pub fn of(batch: &'a [T]) -> Self {
        Self(vec![batch])
    }

    /// The next part.
    pub fn next_part(&mut self) -> Option<&'a [T]> {
        self.0.pop()
    }

    /// Splits a part that was refused; its halves come next. A part of one item cannot be split: callers handle it
    /// themselves.
    pub fn split(&mut self, refused: &'a [T]) {
        let (first, second) = refused.split_at(refused.len() / 2);
        self.0.extend([second, first]);
    }
}
