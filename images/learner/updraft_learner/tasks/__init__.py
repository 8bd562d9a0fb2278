"""Programs that the platform brings for jobs with `task` in their manifest."""
