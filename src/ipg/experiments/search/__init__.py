"""The search for settings: trials over a method's space, judged without the test images, best one written down."""
