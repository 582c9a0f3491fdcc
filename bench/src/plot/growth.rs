//! Steps a second against workers, both axes logarithmic, beside what perfect growth from the first size would be.

use super::axis::{Logarithmic, brief};
use super::frame::{Frame, Sheet, draw_legend};
use super::svg::Canvas;
use crate::table::{Column, Table};

/// What grew: workers and steps a second, in the order of the sizes.
#[derive(Clone, Debug)]
pub(crate) struct Growth {
    pub(crate) points: Vec<(f64, f64)>,
}

/// The lines, in the order of the legend.
const NAMES: [&str; 2] = ["simulated", "perfect growth from the first size"];

impl Growth {
    pub(super) fn draw(&self, canvas: &mut Canvas, sheet: Sheet) -> f64 {
        let lines = [self.sorted(), self.perfect()];
        let ends = |values: Vec<f64>| {
            let lowest = values.iter().copied().fold(f64::INFINITY, f64::min);
            Logarithmic::over(lowest, values.into_iter().fold(0.0, f64::max))
        };
        let horizontal = ends(self.points.iter().map(|(workers, _)| *workers).collect());
        let vertical = ends(lines.iter().flatten().map(|(_, steps)| *steps).collect());
        let top = draw_legend(canvas, sheet.top, &NAMES, |canvas, index, (x, y)| {
            canvas.joined(&[(x, y), (x + 28.0, y)], index, index == 1);
            canvas.point((x + 14.0, y), index);
        });
        let frame = Frame::new(canvas, 64.0, top, sheet.height);
        frame.draw_y(canvas, vertical.ticks(), "steps/s of all workers (logarithmic)");
        let bottom = frame.draw_x(canvas, horizontal.ticks(), "workers (logarithmic)");
        for (index, line) in lines.iter().enumerate() {
            let place = |(x, y): &(f64, f64)| (frame.x(horizontal.share(*x)), frame.y(vertical.share(*y)));
            let places: Vec<_> = line.iter().map(place).collect();
            canvas.joined(&places, index, index == 1);
            places.into_iter().for_each(|place| canvas.point(place, index));
        }
        bottom
    }

    pub(super) fn numbers(&self) -> Table {
        let columns = ["workers", "steps/s"].map(Column::number);
        Table::new(columns, self.sorted().iter().map(|(workers, steps)| vec![brief(*workers), brief(*steps)]))
    }

    fn sorted(&self) -> Vec<(f64, f64)> {
        let mut points = self.points.clone();
        points.sort_by(|(one, _), (other, _)| one.total_cmp(other));
        points
    }

    fn perfect(&self) -> Vec<(f64, f64)> {
        let of_each = self.points.first().map_or(0.0, |(workers, steps)| steps / workers);
        self.sorted().into_iter().map(|(workers, _)| (workers, workers * of_each)).collect()
    }
}
