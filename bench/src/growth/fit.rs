//! Least squares with coefficients that are not negative. Pure; three coefficients, so all choices of which are zero are tried.

/// Coefficients of a fit.
pub(super) const COEFFICIENTS: usize = 3;

/// How small a pivot may be beside what its column began with before columns count as multiples of each other.
const PIVOT_MIN: f64 = 1e-9;

/// One measurement: what was counted, and what it cost, which is more than 0.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Equation {
    pub(super) counts: [f64; COEFFICIENTS],
    pub(super) cost: f64,
}

/// The coefficients, none negative, for which the sum of the squared relative errors is least; `None` where none can be had.
/// Where several sets do equally well, as of counts that are multiples of each other, the one with the most coefficients that
/// can be told apart.
pub(super) fn fit(equations: &[Equation]) -> Option<[f64; COEFFICIENTS]> {
    let mut best: Option<(f64, [f64; COEFFICIENTS])> = None;
    // All of them first: fewer coefficients must do better to be taken.
    for chosen in (1..1_u32 << COEFFICIENTS).rev() {
        let Some(coefficients) = solve(equations, chosen) else { continue };
        if coefficients.iter().any(|coefficient| *coefficient < 0.0) {
            continue;
        }
        let error = squared_error(equations, &coefficients);
        if best.is_none_or(|(least, _)| error < least * (1.0 - PIVOT_MIN)) {
            best = Some((error, coefficients));
        }
    }
    best.map(|(_, coefficients)| coefficients)
}

/// The cost that the coefficients give.
pub(super) fn cost(counts: &[f64; COEFFICIENTS], coefficients: &[f64; COEFFICIENTS]) -> f64 {
    counts.iter().zip(coefficients).map(|(count, coefficient)| count * coefficient).sum()
}

fn squared_error(equations: &[Equation], coefficients: &[f64; COEFFICIENTS]) -> f64 {
    let error = |equation: &Equation| cost(&equation.counts, coefficients) / equation.cost - 1.0;
    equations.iter().map(|equation| error(equation).powi(2)).sum()
}

/// The least squares of the chosen coefficients alone, by the normal equations; the columns are scaled to the same length first,
/// since bytes are a million times as many as messages.
fn solve(equations: &[Equation], chosen: u32) -> Option<[f64; COEFFICIENTS]> {
    let columns: Vec<usize> = (0..COEFFICIENTS).filter(|column| chosen & (1 << column) != 0).collect();
    let at = |equation: &Equation, column: usize| equation.counts[column] / equation.cost;
    let length = |&column: &usize| equations.iter().map(|equation| at(equation, column).powi(2)).sum::<f64>().sqrt();
    let scales: Vec<f64> = columns.iter().map(length).collect();
    if scales.iter().any(|scale| *scale <= 0.0 || !scale.is_finite()) {
        return None;
    }
    let scaled = |equation: &Equation, place: usize| at(equation, columns[place]) / scales[place];
    let size = columns.len();
    let mut rows: Vec<Vec<f64>> = (0..size)
        .map(|row| {
            let product = |column| equations.iter().map(|one| scaled(one, row) * scaled(one, column)).sum();
            let right = equations.iter().map(|one| scaled(one, row)).sum();
            (0..size).map(product).chain([right]).collect()
        })
        .collect();
    // Gauss and Jordan; the matrix is symmetric and positive, so its diagonal will do for pivots.
    for pivot in 0..size {
        if rows[pivot][pivot] < PIVOT_MIN {
            return None;
        }
        let scaled: Vec<f64> = rows[pivot].iter().map(|value| value / rows[pivot][pivot]).collect();
        for (_, row) in rows.iter_mut().enumerate().filter(|(index, _)| *index != pivot) {
            let factor = row[pivot];
            row.iter_mut().zip(&scaled).for_each(|(value, scaled)| *value -= factor * scaled);
        }
        rows[pivot] = scaled;
    }
    let mut coefficients = [0.0; COEFFICIENTS];
    for (place, column) in columns.into_iter().enumerate() {
        coefficients[column] = rows[place][size] / scales[place];
    }
    Some(coefficients)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn equations(coefficients: [f64; COEFFICIENTS], counts: &[[f64; COEFFICIENTS]]) -> Vec<Equation> {
        counts.iter().map(|counts| Equation { counts: *counts, cost: cost(counts, &coefficients) }).collect()
    }

    const COUNTS: [[f64; COEFFICIENTS]; 4] =
        [[20.0, 40.0, 2e6], [40.0, 260.0, 7e6], [20.0, 450.0, 2e8], [200.0, 600.0, 4e6]];

    fn assert_near(found: [f64; COEFFICIENTS], known: [f64; COEFFICIENTS]) {
        for (found, known) in found.into_iter().zip(known) {
            assert!((found - known).abs() <= known * 1e-6 + 1e-9, "{found} is not {known}");
        }
    }

    #[test]
    fn known_coefficients_are_found() {
        for known in [[2_500.0, 900.0, 0.12], [0.0, 900.0, 0.12], [2_500.0, 0.0, 0.0]] {
            assert_near(fit(&equations(known, &COUNTS)).unwrap(), known);
        }
    }

    #[test]
    fn none_is_negative() {
        let found = fit(&equations([4_000.0, -300.0, 0.1], &COUNTS)).unwrap();
        assert!(found.iter().all(|coefficient| *coefficient >= 0.0), "{found:?}");
        assert_eq!(found[1], 0.0);
    }

    #[test]
    fn counts_that_are_multiples_of_each_other_share_a_coefficient() {
        let counts = [[20.0, 40.0, 2e6], [40.0, 80.0, 9e6], [60.0, 120.0, 1e6]];
        let made = equations([100.0, 100.0, 0.1], &counts);
        let found = fit(&made).unwrap();
        assert!(made.iter().all(|one| (cost(&one.counts, &found) / one.cost - 1.0).abs() < 1e-6), "{found:?}");
        assert_eq!(found.iter().filter(|coefficient| **coefficient > 0.0).count(), 2);
    }

    #[test]
    fn nothing_comes_of_nothing() {
        assert_eq!(fit(&[]), None);
        assert_eq!(fit(&[Equation { counts: [0.0; 3], cost: 1.0 }]), None);
    }
}
