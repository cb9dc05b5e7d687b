"""travel_desk: flights, hotels, bookings, budgets and loyalty rules, with tasks from none to eight calls."""

from pipeline.environments.travel_desk.generator import DEMO_TEMPLATES, TravelDesk, load

__all__ = ["DEMO_TEMPLATES", "TravelDesk", "load"]
