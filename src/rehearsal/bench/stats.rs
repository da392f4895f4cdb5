//! Medians.

/// The median.
pub(super) fn median(mut figures: Vec<f64>) -> f64 {
    figures.sort_by(f64::total_cmp);
    figures.get(figures.len() / 2).copied().unwrap_or(f64::NAN)
}

/// The round with the median ratio of figure to ceiling.
pub(super) fn middle_round(mut rounds: Vec<(f64, f64)>) -> (f64, f64) {
    let ratio = |round: &(f64, f64)| round.0 / round.1;
    rounds.sort_by(|one, other| ratio(one).total_cmp(&ratio(other)));
    rounds.get(rounds.len() / 2).copied().unwrap_or((f64::NAN, f64::NAN))
}
